sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip route replace 10.244.0.0/24 via 172.18.0.4
ip route replace fd00:10:244::/64 via fc00:f853::4
cat > /etc/cni/net.d/10-pods.conflist <<'JSON'
{"cniVersion":"1.0.0","name":"pods","plugins":[{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:10:244:1::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}],"type":"host-local"},"type":"ptp"},{"capabilities":{"portMappings":true},"type":"portmap"}]}
JSON
ip route replace 10.244.2.0/24 via 172.18.0.2
ip route replace fd00:10:244:2::/64 via fc00:f853::2
