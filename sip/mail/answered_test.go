package mail

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/pmh-bridge/bridge/internal/testenv"
)

// What a server says of one mail is told apart from servers that say nothing of
// it.
func TestAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		answers map[string]string
		want    bool
	}{
		"sender not now":    {map[string]string{"MAIL": "450 later"}, true},
		"greylisted":        {map[string]string{"RCPT": "451 4.7.1 later"}, true},
		"box unknown":       {map[string]string{"RCPT": "550 5.1.1 who?"}, true},
		"no room":           {map[string]string{"DATA": "452 full"}, true},
		"not stored":        {map[string]string{".": "451 4.3.0 full"}, true},
		"busy":              {map[string]string{"": "421 busy"}, false},
		"no service":        {map[string]string{"": "554 no service"}, false},
		"not you":           {map[string]string{"EHLO": "550 no", "HELO": "550 no"}, false},
		"going down":        {map[string]string{"RCPT": "421 closing"}, false},
		"going down at end": {map[string]string{".": "421 closing"}, false},
		"not encrypted":     {map[string]string{"MAIL": "530 5.7.0 STARTTLS first"}, false},
		"ends":              {map[string]string{"RCPT": "end"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			host := (&scripted{answers: c.answers}).start(t)
			s := &Sender{From: "notify@bridge.example"}
			err := s.Send(t.Context(), outgoing(Recipient{Host: host, Address: "box@lib.example"}))
			if err == nil || Answered(err) != c.want {
				t.Errorf("answered: %v, want %v: %v", Answered(err), c.want, err)
			}
		})
	}
}

// Of several servers it is enough that one has answered.
func TestAnsweredByOneOfSeveral(t *testing.T) {
	nobody, later := testenv.Nobody(t), (&scripted{answers: map[string]string{"RCPT": "450 later"}}).start(t)
	at := map[string]string{"one.example:25": nobody, "two.example:25": nobody, "three.example:25": later}
	s := &Sender{From: "notify@bridge.example", Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at[address])
	}}
	for servers, want := range map[[2]string]bool{{"one", "two"}: false, {"one", "three"}: true, {"three", "one"}: true} {
		s.LookupMX = func(context.Context, string) ([]*net.MX, error) {
			return []*net.MX{{Host: servers[0] + ".example", Pref: 1}, {Host: servers[1] + ".example", Pref: 2}}, nil
		}
		if err := s.Send(t.Context(), outgoing(Recipient{Address: "box@lib.example"})); err == nil || Answered(err) != want {
			t.Errorf("%s: answered: %v, want %v: %v", servers, Answered(err), want, err)
		}
	}
	s.LookupMX = func(context.Context, string) ([]*net.MX, error) { return nil, errors.New("the resolver is away") }
	if err := s.Send(t.Context(), outgoing(Recipient{Address: "box@lib.example"})); err == nil || Answered(err) {
		t.Errorf("answered: %v: %v", Answered(err), err)
	}
}
