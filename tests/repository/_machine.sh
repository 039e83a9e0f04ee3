#!/bin/bash
# Becomes a bare machine: the first process in new namespaces of mounts, processes, network and names.
# Its disk is an image that it cannot change, with a folder of its own over it.
#     _machine.sh IMAGE OWN NAME [FOLDER-TO-SHOW PLACE]...
set -e
image=$1 own=$2 name=$3
shift 3
hostname "$name"
mount --make-rprivate /
mkdir -p "$own/upper" "$own/work" "$own/root"
mount -t overlay overlay -o "lowerdir=$image,upperdir=$own/upper,workdir=$own/work" "$own/root"
cd "$own/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs dev -o mode=755
# Nodes of its own: what it does to their rights is nobody else's.
while read -r device minor; do
    mknod -m 666 "dev/$device" c 1 "$minor"
done <<< $'null 3\nzero 5\nfull 7\nrandom 8\nurandom 9'
mknod -m 666 dev/tty c 5 0
mkdir dev/pts dev/shm
mount -t devpts devpts dev/pts -o newinstance,ptmxmode=0666
mount -t tmpfs tmpfs dev/shm -o mode=1777
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mknod -m 600 dev/console c 1 3
mount -t tmpfs tmpfs run -o mode=755
mount -t tmpfs tmpfs tmp -o mode=1777
if [ -e sys/fs/cgroup/cgroup.controllers ] || [ ! -d /sys/fs/cgroup/systemd ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs tmpfs sys/fs/cgroup -o mode=755
    mkdir sys/fs/cgroup/systemd
    mount -t cgroup cgroup sys/fs/cgroup/systemd -o none,name=systemd
fi
while [ $# -gt 0 ]; do
    mkdir -p ".$2"
    mount --bind "$1" ".$2"
    mount -o remount,bind,ro ".$2"
    shift 2
done
# Its server is enabled, and started, by who installs it: without keys it would fail again and again.
rm -f etc/systemd/system/multi-user.target.wants/ssh.service
mkdir -p old
pivot_root . old
umount -l /old
exec env -i container=lxc PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init \
    --log-target=null < /dev/null > /dev/null 2>&1
