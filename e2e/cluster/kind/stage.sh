# Runs with the node's root file system as / and makes a kind node of it: what
# kind's own image build does to its base image, minus its downloads.
set -eu
chmod 0755 /kind /kind/bin /kind/bin/* /usr/local/bin/*
mkdir -p /opt/cni/bin /etc/cni/net.d /etc/kubernetes/manifests /kind/manifests
ln -sf /usr/lib/cni/* /opt/cni/bin/
for b in kubelet kubeadm kubectl; do ln -sf /usr/local/bin/$b /usr/bin/$b; done
ln -sf "$(command -v runc)" /usr/local/sbin/runc

# systemd in a container: no hardware, no logins, nothing but what is enabled here.
find /lib/systemd/system/sysinit.target.wants/ -name systemd-tmpfiles-setup.service -delete
rm -f /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* \
  /lib/systemd/system/local-fs.target.wants/* /lib/systemd/system/sockets.target.wants/*udev* \
  /lib/systemd/system/sockets.target.wants/*initctl* /lib/systemd/system/basic.target.wants/*
echo ReadKMsg=no >> /etc/systemd/journald.conf
ln -sf /usr/lib/systemd/systemd /sbin/init
systemctl enable kubelet.service containerd.service undo-mount-hacks.service
systemctl mask systemd-binfmt.service

ctr oci spec > /etc/containerd/cri-base.json
echo "$KUBERNETES" > /kind/version
# kind applies this manifest and insists on an object in it.
cat > /kind/manifests/default-storage.yaml <<'YAML'
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard}
provisioner: kubernetes.io/no-provisioner
YAML
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /usr/share/doc /usr/share/man /usr/share/locale
