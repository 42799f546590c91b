package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pmh-bridge/bridge/fixtures"
)

// TestAuthorityOfSource: the server of a Source has a certificate of the library's own
// authority, which the system does not know. ca_file says so, and what is new in that file,
// as when the authority is followed by another one, counts from the next reload.
func TestAuthorityOfSource(t *testing.T) {
	t.Parallel()
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	var certificate atomic.Pointer[tls.Certificate]
	certificate.Store(first.server)
	p := fixtures.New(fixtures.Options{})
	p.Create(fixtures.Record{Name: "a"})
	upstream := httptest.NewUnstartedServer(p)
	upstream.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*certificate.Load()}}, nil
	}}
	upstream.Config.ErrorLog = log.New(io.Discard, "", 0)
	upstream.Config.SetKeepAlivesEnabled(false) // each connection sees the certificate of its time
	upstream.StartTLS()
	t.Cleanup(upstream.Close)
	f := newFolder(t, fmt.Sprintf("data = \"data\"\nlisten = \"127.0.0.1:0\"\n[[set]]\nname = \"main\"\n[[set.source]]\nkind = \"atompmh\"\nurl = %q\nca_file = \"ca.pem\"\n", upstream.URL+fixtures.Subscription), "ca.pem", second.pem)
	serve, _ := f.serve()
	believe := func(authorities string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(f.path, "ca.pem"), []byte(authorities), 0o600); err != nil {
			t.Fatal(err)
		}
		if said := f.run(exitDone, "reload").stdout; !strings.Contains(said, "set main: Source "+upstream.URL) {
			t.Fatalf("reload says %q", said)
		}
	}
	await := func(events int) {
		t.Helper()
		f.run(exitDone, "source", "harvest", "--data", "data", "main")
		tick := time.NewTicker(askEvery)
		defer tick.Stop()
		for limit := time.Now().Add(patience); ; <-tick.C {
			switch n := strings.Count(f.run(exitDone, "log", "--data", "data", "--json").stdout, "\n"); {
			case n == events:
				return
			case n > events, time.Now().After(limit):
				t.Fatalf("%d events, want %d\n%s", n, events, serve.stderr.String())
			}
		}
	}

	if _, err := serve.stderr.expect(regexp.MustCompile(`"msg":"harvest failed".*certificate signed by unknown authority`)); err != nil {
		t.Fatal(err)
	}
	believe(first.pem)
	await(1)

	p.Create(fixtures.Record{Name: "b"})
	certificate.Store(second.server)
	believe(first.pem + second.pem)
	await(2)

	// A file that has no certificate changes nothing.
	if err := os.WriteFile(filepath.Join(f.path, "ca.pem"), []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := f.run(exitUsage, "reload").stderr; !strings.Contains(said, "ca_file: ca.pem has no certificate in PEM") {
		t.Errorf("reload says %q", said)
	}
	p.Create(fixtures.Record{Name: "c"})
	await(3)
	f.end(serve, os.Interrupt)
	f.run(exitDone, "verify", "--data", "data")
}

// authority is one that signs certificates, with that of a server at 127.0.0.1.
type authority struct {
	pem    string
	server *tls.Certificate
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	template := func(serial int64) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	}
	own := template(1)
	own.IsCA, own.BasicConstraintsValid, own.KeyUsage = true, true, x509.KeyUsageCertSign
	ownKey, ownRaw := sign(t, own, own, nil)
	of := template(2)
	of.Subject.CommonName, of.IPAddresses = "127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}
	key, raw := sign(t, of, own, ownKey)
	return &authority{string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ownRaw})), &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}}
}

// sign makes a key and a certificate for it; without a parent's key it signs itself.
func sign(t *testing.T, template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	return key, raw
}
