#!/bin/sh
# Makes a small root of programs of this machine, with a shell, an SSH daemon and sudo. Arguments: where, this program.
set -e
tree=$1
take() {
    for path in "$@"; do
        [ -e "$path" ] || continue
        mkdir -p "$tree$(dirname "$path")"
        cp -L --preserve=mode "$path" "$tree$path"
    done
}
for place in bin proc sys dev run tmp root home var/lib/stead var/log etc/ssh/sshd_config.d etc/pam.d etc/sudoers.d; do
    mkdir -p "$tree/$place"
done
cp /bin/busybox "$tree/bin/busybox"
for name in $(busybox --list); do
    [ -e "$tree/bin/$name" ] || ln -s busybox "$tree/bin/$name"
done
for program in "$2" /usr/sbin/sshd /usr/lib/openssh/sshd-session /usr/lib/openssh/sshd-auth /usr/bin/sudo \
    /usr/libexec/sudo/*.so* /usr/lib/sudo/*.so* /lib/*/security/pam_permit.so /usr/sbin/useradd /usr/sbin/usermod \
    /usr/sbin/groupadd /usr/bin/getent /usr/bin/setsid /usr/sbin/visudo; do
    [ -e "$program" ] || continue
    [ "$program" = "$2" ] || take "$program"
    # shellcheck disable=SC2046
    take $(ldd "$program" 2>/dev/null | grep -o '/[^ ]*')
done
take /usr/share/zoneinfo/UTC
printf 'root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n' >"$tree/etc/passwd"
printf 'root:x:0:\nshadow:x:42:\nnogroup:x:65534:\n' >"$tree/etc/group"
printf 'root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n' >"$tree/etc/shadow"
printf 'Include /etc/ssh/sshd_config.d/*.conf\nUsePAM yes\nPasswordAuthentication no\n' >"$tree/etc/ssh/sshd_config"
for service in sshd sudo other; do
    printf '%s required pam_permit.so\n' auth account session >"$tree/etc/pam.d/$service"
done
printf '@includedir /etc/sudoers.d\n' >"$tree/etc/sudoers"
chmod 440 "$tree/etc/sudoers"
chmod 1777 "$tree/tmp"
# A device, as archives of whole systems have them.
mknod "$tree/dev/null" c 1 3
