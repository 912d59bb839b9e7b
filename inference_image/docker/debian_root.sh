#!/bin/sh
# Makes the root file system that the service runs on, out of Debian packages.
#
#     debian_root.sh ARCHITECTURE LIST FOLDER
#
# The packages of LIST are unpacked, and no script of theirs runs: the machine that builds need
# not be of ARCHITECTURE. apt checks their signatures.
set -eu
architecture=$1
list=$2
root=$3
work=$(mktemp -d)

mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs"
apt() {
    apt-get --quiet=2 \
        -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" \
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3 \
        -o Dir::State::Lists="$work/lists" -o Dir::State::status=/dev/null \
        -o Dir::Cache="$work/cache" "$@"
}
apt update
cd "$work/debs"
# Word splitting is meant: one word for each package.
# shellcheck disable=SC2046
apt download $(grep -v '^#' "$list")

# As in every Debian since 12, the programs and libraries are under /usr.
mkdir -p "$root/usr/bin" "$root/usr/lib" "$root/usr/sbin" "$root/var/lib/dpkg/status.d"
ln -s usr/bin usr/lib usr/sbin "$root/"
if [ "$architecture" = amd64 ]; then
    mkdir "$root/usr/lib64"
    ln -s usr/lib64 "$root/lib64"
fi
for deb in "$work"/debs/*.deb; do
    dpkg-deb --fsys-tarfile "$deb" | tar --extract --keep-directory-symlink --directory "$root"
    # Where scanners look for the packages of an image without a package manager.
    dpkg-deb --field "$deb" > "$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$deb" Package)"
done

cd "$root"
ln -s "$(basename usr/bin/python3.*)" usr/bin/python3

# What the packages' scripts would have made.
cat usr/share/ca-certificates/mozilla/*.crt > etc/ssl/certs/ca-certificates.crt
mkdir -p usr/lib/ssl
ln -s /etc/ssl/certs/ca-certificates.crt usr/lib/ssl/cert.pem
printf 'root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/tmp:/sbin/nologin\n' \
    > etc/passwd
printf 'root:x:0:\nnogroup:x:65534:\n' > etc/group
# Without it names would be asked of DNS before /etc/hosts, localhost too.
printf 'passwd: files\ngroup: files\nhosts: files dns\n' > etc/nsswitch.conf
rm -rf "$work"
