package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// Two hops of HAProxy with mutual TLS between them, tuned fairly: one thread
// each, kept and shared upstream connections, no access log, TLS 1.3 with the
// suite and curve class of ours, client certificate required.
const (
	haproxyClient = `global
  nbthread 1
  maxconn 8192
  ssl-default-server-ciphersuites TLS_AES_128_GCM_SHA256
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend local
  bind 127.0.0.1:9001
  default_backend far
backend far
  server far %s ssl crt %s ca-file %s verify required ssl-min-ver TLSv1.3 pool-max-conn 1000
`
	haproxyServer = `global
  nbthread 1
  maxconn 8192
  ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend far
  bind :8443 ssl crt %s ca-file %s verify required ssl-min-ver TLSv1.3
  default_backend app
backend app
  server app 127.0.0.1:8080 pool-max-conn 1000
`
)

// haproxyFiles writes certificates and both configurations into dir. far is
// where the client side dials.
func haproxyFiles(dir, far string) (clientCfg, serverCfg string, err error) {
	ca := filepath.Join(dir, "ca.pem")
	leaf := filepath.Join(dir, "leaf.pem")
	if _, err := os.Stat(leaf); err != nil {
		if err := writePKI(ca, leaf); err != nil {
			return "", "", fmt.Errorf("make certificates for haproxy: %w", err)
		}
	}
	clientCfg, serverCfg = filepath.Join(dir, "client.cfg"), filepath.Join(dir, "server.cfg")
	if err := os.WriteFile(clientCfg, fmt.Appendf(nil, haproxyClient, far, leaf, ca), 0o644); err != nil {
		return "", "", err
	}
	return clientCfg, serverCfg, os.WriteFile(serverCfg, fmt.Appendf(nil, haproxyServer, leaf, ca), 0o644)
}

// writePKI makes a root and one certificate, P-256, that serves both ends.
func writePKI(caFile, leafFile string) error {
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench root"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, rootKey.Public(), rootKey)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "bench"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), rootKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	both := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leafDER}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...)
	if err := os.WriteFile(leafFile, both, 0o600); err != nil {
		return err
	}
	return os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER}), 0o644)
}
