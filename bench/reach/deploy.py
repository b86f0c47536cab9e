"""The twenty operations of site.yaml, for pyinfra."""
from io import StringIO

from pyinfra import host
from pyinfra.operations import apt, files, server

dir = f"{host.data.base}/{host.name}/site"
files.directory(path=dir, mode="755")
files.directory(path=f"{dir}/conf.d", mode="750")
files.put(src=StringIO("one\n"), dest=f"{dir}/one", mode="644")
files.put(src=StringIO("two\n"), dest=f"{dir}/two", mode="644")
files.put(src=StringIO("three\n"), dest=f"{dir}/three", mode="600")
files.put(src=StringIO("four\n"), dest=f"{dir}/conf.d/four", mode="644")
files.put(src=StringIO("five\n"), dest=f"{dir}/conf.d/five", mode="644")
files.line(path=f"{dir}/settings", line="^a =.*", replace="a = 1")
files.line(path=f"{dir}/settings", line="^b =.*", replace="b = 2")
files.line(path=f"{dir}/settings", line="^c =.*", replace="c = 3")
files.block(path=f"{dir}/settings", content="d = 4\ne = 5")
files.template(src="peers.conf.j2", dest=f"{dir}/first.conf", mode="644", site="first")
files.template(src="peers.conf.j2", dest=f"{dir}/second.conf", mode="644", site="second")
files.link(path=f"{dir}/current", target="one")
files.file(path=f"{dir}/old", present=False)
server.group(group="daemon")
server.user(user="daemon", shell="/usr/sbin/nologin", ensure_home=False)
apt.packages(packages=["bash", "coreutils", "sed"])
server.shell(commands=["true"])
server.shell(commands=[f"test -d {dir}"])
