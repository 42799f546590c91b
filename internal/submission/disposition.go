package submission

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pmh-bridge/bridge/sip"
)

// MaxText is how many bytes a name, an identifier or a reason that somebody states
// may have: all of them stay in the log for ever.
const MaxText = 8 << 10

// SourceTexts returns the texts of a source element by their paths.
func SourceTexts(s *sip.Source) map[string]string {
	texts := map[string]string{}
	if s == nil {
		return texts
	}
	if s.Submitter != nil {
		texts["source/submitter/name"], texts["source/submitter/email-address"] = s.Submitter.Name, s.Submitter.EmailAddress
	}
	if s.Sequence != nil {
		texts["source/sequence"] = *s.Sequence
	}
	if s.Identifier != nil {
		texts["source/source-identifier"] = *s.Identifier
	}
	return texts
}

// CheckTexts returns a *sip.Fault when a text is longer than MaxText. root is the name
// of the document that they are in.
func CheckTexts(root string, s *sip.Source, assigned string) error {
	texts := SourceTexts(s)
	texts["accepted/assigned-identifier"] = assigned
	for _, path := range slices.Sorted(maps.Keys(texts)) {
		if len(texts[path]) > MaxText {
			return TooLong(root+"/"+path, texts[path])
		}
	}
	return nil
}

// TooLong is the fault of a text at a path that is longer than MaxText.
func TooLong(path, text string) error {
	return &sip.Fault{Code: sip.Client, Path: path, Text: fmt.Sprintf("it has %d bytes: at most %d are allowed", len(text), MaxText)}
}

// Identifies reports whether a source element names a record. An empty source-identifier
// names none: else each record of a submitter who always sends an empty one would
// overwrite the last.
func Identifies(s *sip.Source) bool {
	return s != nil && s.Identifier != nil && strings.TrimSpace(*s.Identifier) != ""
}

// Versioned reports whether a received submission may have other versions: its
// source element names the record.
//
// Of two versions of one record the later submission wins: at the ingest server, in our
// own set and in the set that imports accepted records, whichever is delayed, repeated or
// resumed. Versions are submissions of the same record of a target, or received ones with
// the same source element that names a record. The later one has the higher ID.
func Versioned(s *Submission) bool {
	return s.SourceXML != nil && strings.TrimSpace(s.SourceIdentifier) != ""
}

// Storable returns a disposition with a reason that is not too long for the log.
// The error is a *sip.Fault: the other texts cannot be cut.
func Storable(d *sip.Disposition) (*sip.Disposition, error) {
	if err := CheckTexts("ingest-disposition", d.Source, d.AssignedIdentifier); err != nil {
		return nil, err
	}
	if len(d.Reason) <= MaxText {
		return d, nil
	}
	cut := *d
	cut.Reason = strings.ToValidUTF8(d.Reason[:MaxText], "") + "..."
	return &cut, nil
}

// StateAfter returns the state that a disposition leads to.
func StateAfter(d *sip.Disposition) State {
	switch d.Outcome {
	case sip.ProvisionallyAccepted:
		return StateProvisional
	case sip.Accepted:
		return StateAccepted
	}
	return StateRejected
}

// Document returns a disposition as a document of its own.
func Document(d *sip.Disposition) []byte {
	return sip.AppendDocument(nil, &sip.Message{Kind: sip.KindDisposition, Disposition: d})
}

// Incoming returns the notification that the log keeps of an ultimate disposition that
// came to a set with a token.
func Incoming(set, token string, d *sip.Disposition) *IncomingNotification {
	h := sha256.New()
	h.Write(binary.AppendUvarint(nil, uint64(len(token))))
	h.Write([]byte(token))
	h.Write(Document(d))
	n := &IncomingNotification{Set: set, Digest: [32]byte(h.Sum(nil)), Outcome: StateAfter(d), Assigned: d.AssignedIdentifier, Reason: d.Reason}
	if s := d.Source; s != nil {
		n.SourceXML = sip.AppendSource(nil, s)
		if s.Identifier != nil {
			n.SourceIdentifier = *s.Identifier
		}
	}
	return n
}

// Contradiction returns the notification that the log keeps of a disposition that
// contradicts the one in force, whether it came in the notification n or, with nil, as a
// reply.
func Contradiction(s *Submission, d *sip.Disposition, n *IncomingNotification) *IncomingNotification {
	if n == nil {
		n = Incoming(s.Set, s.Token, d)
		n.Submission = s.ID
	}
	n.Verdict = NotificationConflict
	return n
}

// QualifiedName writes a name as the configuration does.
func QualifiedName(n xml.Name) string {
	if n.Space == "" {
		return n.Local
	}
	return "{" + n.Space + "}" + n.Local
}

// maxClip is how long a text from elsewhere may be in a reason of ours.
const maxClip = 300

// Clip shortens a text from elsewhere for a reason of ours, without cutting a
// character.
func Clip(s string) string {
	if len(s) <= maxClip {
		return s
	}
	return strings.ToValidUTF8(s[:maxClip], "") + "..."
}
