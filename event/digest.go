package event

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Digest returns 64 bits of SHA-256 over what counts as the state of a live
// record (I5): title; per representation type, hash and length, and href only
// where there is no hash; the via's href. Where a representation has no hash,
// the stamp counts too: nothing else tells that its content has changed. The
// order of the representations does not count. Two states are the same when
// their digests are.
func (o *Observation) Digest() int64 {
	b := make([]byte, 0, 512)
	b = appendField(b, o.Title)
	b = appendField(b, o.ViaHref())
	b = appendField(b, o.Loc)
	reps := o.Representations
	if len(reps) > 1 {
		reps = slices.Clone(reps)
		slices.SortFunc(reps, func(x, y Representation) int {
			return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Hash, y.Hash), cmp.Compare(x.Length, y.Length), cmp.Compare(x.Href, y.Href))
		})
	}
	for _, r := range reps {
		b = appendField(b, r.Type)
		b = appendField(b, r.Hash)
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Length))
		if r.Hash == "" {
			b = appendField(b, r.Href)
			b = binary.LittleEndian.AppendUint64(b, uint64(o.Modified.Nanos()))
		}
	}
	return bits(b)
}

// ViaHref returns where the original is: the inherited via, else the preferred
// representation at the Source.
func (o *Observation) ViaHref() string {
	if o.Via.Href != "" || o.Preferred < 0 || o.Preferred >= len(o.Representations) {
		return o.Via.Href
	}
	return o.Representations[o.Preferred].Href
}

// ClaimOf returns 64 bits of SHA-256 over all that a document said of a record
// but its order and place. Where stamp and claim are the stored ones nothing has
// to be fetched.
func (o *Observation) ClaimOf() int64 {
	b := make([]byte, 0, 512)
	if o.Deleted {
		b = append(b, 1)
	}
	b = appendField(b, o.Title)
	b = appendField(b, o.Loc)
	b = binary.LittleEndian.AppendUint64(b, uint64(o.Modified.Nanos()))
	b = appendLinkField(b, o.Via)
	b = binary.LittleEndian.AppendUint64(b, uint64(o.Preferred))
	for _, r := range o.Representations {
		b = appendField(b, r.Href)
		b = appendField(b, r.Type)
		b = appendField(b, r.Hash)
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Length))
	}
	for _, l := range o.Links {
		b = appendLinkField(b, l)
	}
	return bits(b)
}

func appendField(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendLinkField(b []byte, l Link) []byte {
	b = appendField(b, l.Rel)
	b = appendField(b, l.Href)
	b = appendField(b, l.Type)
	b = appendField(b, l.Hash)
	b = binary.LittleEndian.AppendUint64(b, uint64(l.Length))
	return binary.LittleEndian.AppendUint64(b, uint64(l.Modified.Nanos()))
}

func bits(b []byte) int64 {
	sum := sha256.Sum256(b)
	return int64(binary.BigEndian.Uint64(sum[:8]))
}
