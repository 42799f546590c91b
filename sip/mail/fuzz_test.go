package mail

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/pmh-bridge/bridge/sip"
)

// FuzzMail: whatever comes as a mail, it is a notification or its fault is told.
// A notification is what its message is alone.
func FuzzMail(f *testing.F) {
	for _, mail := range encodings(f) {
		f.Add(mail)
	}
	f.Add(plain())
	f.Add([]byte("Content-Type: multipart/mixed; boundary=\"\"\r\n\r\n--\r\n"))
	f.Fuzz(func(t *testing.T, mail []byte) {
		d, err := readMail(bytes.NewReader(mail), sip.ReadOptions{})
		if err != nil {
			var fault *sip.Fault
			if d != nil || !errors.As(err, &fault) && !errors.Is(err, sip.ErrTooLarge) {
				t.Fatalf("%v, %v", d, err)
			}
			return
		}
		again, err := sip.ReadMessage(bytes.NewReader(message(d)), sip.ReadOptions{})
		if err != nil || !reflect.DeepEqual(again.Disposition, d) {
			t.Fatalf("read as %+v, and again as %+v, %v", d, again, err)
		}
	})
}

// FuzzRoundTrip: the mail that a Sender makes of a message is read as the message
// is alone, also when that is refused.
func FuzzRoundTrip(f *testing.F) {
	f.Add(message(accepted()))
	f.Add(message(&sip.Disposition{Outcome: sip.ProvisionallyAccepted}))
	f.Add([]byte("<a>\x00</a>"))
	s := &Sender{From: "notify@bridge.example"}
	f.Fuzz(func(t *testing.T, xml []byte) {
		mail, err := s.compose(&Mail{ID: "1@b", To: Recipient{Address: "box@lib.example"}, Message: xml})
		if err != nil {
			t.Fatal(err)
		}
		d, err := readMail(bytes.NewReader(mail), sip.ReadOptions{})
		alone, aloneErr := sip.ReadMessage(bytes.NewReader(xml), sip.ReadOptions{URL: "mail", ContentType: "text/xml; charset=utf-8"})
		switch {
		case aloneErr != nil:
			if !reflect.DeepEqual(err, aloneErr) {
				t.Fatalf("%v, alone %v", err, aloneErr)
			}
		case alone.Kind != sip.KindDisposition || alone.Disposition.Outcome == sip.ProvisionallyAccepted:
			if err == nil {
				t.Fatalf("%s is a notification", xml)
			}
		case err != nil || !reflect.DeepEqual(d, alone.Disposition):
			t.Fatalf("%+v, %v, alone %+v", d, err, alone)
		}
	})
}
