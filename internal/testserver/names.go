package testserver

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// Names returns a resolver that asks no name server but answer, which may be called from any
// goroutine: it returns the addresses of a name, with spaces between them. "" says that there
// is no such name.
func Names(answer func(name string, wanted dnsmessage.Type) string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go resolve(theirs, answer)
		return ours, nil
	}}
}

// resolve answers one question of a resolver, as a DNS server does over TCP.
func resolve(c net.Conn, answer func(string, dnsmessage.Type) string) {
	defer c.Close()
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return
	}
	question := make([]byte, binary.BigEndian.Uint16(length[:]))
	var m dnsmessage.Message
	if _, err := io.ReadFull(c, question); err != nil || m.Unpack(question) != nil || len(m.Questions) != 1 {
		return
	}
	q := m.Questions[0]
	addresses := strings.Fields(answer(strings.TrimSuffix(q.Name.String(), "."), q.Type))
	m.Response, m.Additionals = true, nil
	if len(addresses) == 0 {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addresses {
		h := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
		switch a := netip.MustParseAddr(text); {
		case a.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AResource{A: a.As4()}})
		case a.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	if out, err := m.Pack(); err == nil {
		_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...))
	}
}
