#!/bin/busybox sh
# The first process of a node that tests can afford: what the seed brings is unpacked, SSH and the agent are started.
umask 022
chmod 755 /
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /run/openrc /run/sshd /seed /tmp
mount -t devpts pts /dev/pts
chmod 1777 /tmp
# As whoever brings it leaves it: nobody brings it again.
chmod 700 /var/lib/stead/bin/*/stead
# Which of two modules needs the other differs between kernels: what cannot be loaded at first can the second time.
for pass in 1 2; do
    for module in $(cat /modules/order); do insmod /modules/$module.ko 2>/dev/null; done
done
for disk in /dev/vd?; do mount -t iso9660 -o ro $disk /seed 2>/dev/null && break; done
tar -xf /seed/stead-files -C /
hostname "$(sed -n 's/^local-hostname: //p' /seed/meta-data)"
ip link set lo up
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
mkdir -p /etc/acpi/PWRF
printf '#!/bin/sh\npoweroff -f\n' >/etc/acpi/PWRF/00000080
chmod 755 /etc/acpi/PWRF/00000080
acpid -d -c /etc/acpi >/dev/null 2>&1 &
for service in /etc/runlevels/default/*; do rc-service "${service##*/}" start; done
/usr/sbin/sshd -D -e 2>/dev/console &
# What busybox's `reboot` tells the first process.
trap 'reboot -f' TERM
echo "micro node is up"
while :; do
    if [ -e /etc/stead/bootstrap.json ]; then
        /var/lib/stead/bin/*/stead agent run >/dev/console 2>&1 &
        wait $!
        echo "the agent ended: $?"
    fi
    sleep 1
done
