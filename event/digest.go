package event

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Digest returns 64 bits of SHA-256 over the state of a live record in a set that treats
// content so (I5): title; per representation type, language, profile, hash, encoding and
// length; categories; the links that are published; Loc; the via's href. The href of a
// representation counts where consumers are sent to it, and in a mirror if it has no
// hash. If it has no hash, the stamp counts too, since nothing else shows that the
// content has changed, except ContentBits for the only representation. The order of
// representations, categories and links does not count. Two states are the same when
// their digests are.
func (o *Observation) Digest(content Content) int64 {
	b := make([]byte, 0, 512)
	b = appendField(b, o.Title)
	b = appendField(b, o.ViaHref())
	b = appendField(b, o.Loc)
	reps := o.Representations
	if len(reps) > 1 {
		reps = slices.Clone(reps)
		slices.SortFunc(reps, func(x, y Representation) int {
			return cmp.Or(cmp.Compare(x.Type, y.Type), cmp.Compare(x.Hreflang, y.Hreflang), cmp.Compare(x.Profile, y.Profile),
				cmp.Compare(x.Hash, y.Hash), cmp.Compare(x.Length, y.Length), cmp.Compare(x.Href, y.Href))
		})
	}
	b = binary.AppendUvarint(b, uint64(len(reps)))
	for i := range reps {
		r := &reps[i]
		b = appendField(b, r.Type)
		b = appendField(b, r.Hreflang)
		b = appendField(b, r.Profile)
		b = appendField(b, r.Hash)
		b = appendField(b, r.Encoding)
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Length))
		if r.Hash == "" || content != Mirror {
			b = appendField(b, r.Href)
		}
		if r.Hash == "" && (o.ContentBits == 0 || len(reps) > 1) {
			b = binary.LittleEndian.AppendUint64(b, uint64(o.Modified.Nanos()))
		}
	}
	if o.ContentBits != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(o.ContentBits))
	}
	b = appendCategories(b, o.Categories)
	b = appendPublished(b, o.Links, content)
	return bits(b)
}

func appendCategories(b []byte, categories []Category) []byte {
	if len(categories) > 1 {
		categories = slices.Clone(categories)
		slices.SortFunc(categories, func(x, y Category) int {
			return cmp.Or(cmp.Compare(x.Scheme, y.Scheme), cmp.Compare(x.Term, y.Term), cmp.Compare(x.Label, y.Label))
		})
	}
	b = binary.AppendUvarint(b, uint64(len(categories)))
	for _, c := range categories {
		b = appendField(appendField(appendField(b, c.Term), c.Scheme), c.Label)
	}
	return b
}

// appendPublished appends the links that are published, a record of the set by
// its identifier: its own URL follows from that, but in mode reference.
func appendPublished(b []byte, links []Link, content Content) []byte {
	var published [][]byte
	for i := range links {
		l := &links[i]
		if !l.Published(content) {
			continue
		}
		field := appendField(appendField(appendField(nil, l.Rel), l.Type), l.Record)
		if l.Record == "" || content == Reference {
			field = appendField(field, l.Href)
		}
		if l.OfCopy() {
			field = binary.AppendVarint(appendField(field, l.Hash), l.Length)
			field = binary.AppendUvarint(field, uint64(l.Pri))
		}
		published = append(published, field)
	}
	slices.SortFunc(published, slices.Compare)
	for _, field := range published {
		b = append(b, field...)
	}
	return b
}

// ViaHref returns where the original is: the inherited via, else the preferred
// representation at the Source.
func (o *Observation) ViaHref() string {
	if o.Via.Href != "" || o.Preferred < 0 || o.Preferred >= len(o.Representations) {
		return o.Via.Href
	}
	return o.Representations[o.Preferred].Href
}

// ClaimOf returns 64 bits of SHA-256 over all that a document reported about a record
// except its order, its place and its details. If stamp and claim are the stored ones
// nothing has to be fetched.
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
	for i := range o.Representations {
		r := &o.Representations[i]
		b = appendField(b, r.Href)
		b = appendField(b, r.Type)
		b = appendField(b, r.Hreflang)
		b = appendField(b, r.Profile)
		b = appendField(b, r.Hash)
		b = appendField(b, r.Encoding)
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Length))
	}
	b = appendCategories(b, o.Categories)
	for _, l := range o.Links {
		b = appendField(appendLinkField(b, l), l.Record)
	}
	for i := range o.Representations {
		b = appendPri(b, i, o.Representations[i].Pri)
	}
	for i := range o.Links {
		b = appendPri(b, i, o.Links[i].Pri)
	}
	if o.ContentBits != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(o.ContentBits))
	}
	return bits(b)
}

// appendPri appends the priority of the i-th of several, if it has one.
func appendPri(b []byte, i, pri int) []byte {
	if pri == 0 {
		return b
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(i)), uint64(pri))
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
