package resourcesync

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/pmh-bridge/bridge/internal/follow"
)

const (
	// maxPackage is the default of Walk.MaxPackage.
	maxPackage = 16 << 30
	// brokenMost is how often in a row a download may break off without a byte more.
	brokenMost = 3
)

// packageRef is what a dump states about a package (clauses 11.1 and 13.1).
type packageRef struct {
	URL string `json:"url"`
	// Copy is where a copy of its manifest is, "" when the dump names none.
	Copy   string `json:"copy,omitempty"`
	Hash   string `json:"hash,omitempty"`
	Length int64  `json:"length"` // below zero when it is not stated
}

// packageOf returns the package that an entry of a dump leads to.
func packageOf(e *Entry) *packageRef {
	p := &packageRef{URL: e.Loc, Hash: Hashes(e.Metadata.Hash), Length: -1}
	if n, known := e.Metadata.Length.Bytes(); known {
		p.Length = n
	}
	for i := range e.Links {
		if l := &e.Links[i]; l.Rel == RelContents && p.Copy == "" {
			p.Copy = l.Href
		}
	}
	return p
}

// Package is a package of a dump, whose manifest a List reads. Where the Source has a copy of
// the manifest, the List reads that copy, and the package itself is downloaded only by Load.
type Package struct {
	walker *walker
	ref    packageRef
	file   *os.File // without a name
	size   int64
	dump   *DumpReader
	// copied is the hash of the entries in the copy of the manifest (see summarize); nil when
	// the manifest was read from the package.
	copied hash.Hash
	list   *List
}

// URL returns where the package is.
func (p *Package) URL() string { return p.ref.URL }

// Length returns how many bytes it has or, until it is Loaded, what the dump states.
func (p *Package) Length() Length {
	if p.dump != nil {
		return Bytes(p.size)
	}
	return Bytes(p.ref.Length)
}

// Memory returns about how many bytes of memory it takes while it is Loaded.
func (p *Package) Memory() int64 {
	if p.dump == nil {
		return 0
	}
	return p.dump.Memory()
}

// Loaded reports whether the package was downloaded, so that Open can be called.
func (p *Package) Loaded() bool { return p.dump != nil }

// Load downloads the package, unless that was done. Call it from the loop over the walk's
// lists, once the list was read to its end. The error is a *DumpError where the package cannot
// be used, for example if its manifest differs from the copy that the list has read.
func (p *Package) Load() error {
	if p.dump != nil {
		return nil
	}
	if !p.list.ended {
		return fmt.Errorf("%s: %w: then load the package", p.list.URL, errUnread)
	}
	if _, err := p.download(follow.Validators{}); err != nil {
		return err
	}
	own := newSummary()
	for e, err := range p.dump.Entries() {
		var bad *EntryError
		if err != nil && !errors.As(err, &bad) {
			p.close()
			return err
		}
		summarize(own, e)
	}
	if string(own.Sum(nil)) != string(p.copied.Sum(nil)) {
		err := p.dump.refuse("its manifest does not say what the copy at %s says", p.ref.Copy)
		p.close()
		return err
	}
	return nil
}

// Open opens a bitstream of a package that is Loaded, see DumpReader.Open. It may be
// called from any goroutine until the loop over the walk's lists goes on.
func (p *Package) Open(m *Metadata) (io.ReadCloser, error) {
	if p.dump == nil {
		return nil, &DumpError{URL: p.ref.URL, Path: m.Path, Reason: "the package was not downloaded"}
	}
	return p.dump.Open(m)
}

// close removes what was downloaded.
func (p *Package) close() {
	if p.file != nil {
		_ = p.file.Close() // it has no name, and nobody reads it any more
		p.file, p.dump = nil, nil
	}
}

// download fetches the package into a temporary file and opens it. A download that
// breaks off is resumed.
func (p *Package) download(v follow.Validators) (a *follow.Answer, err error) {
	k := p.walker
	file, err := os.CreateTemp(k.w.Folder, "bridge-package-*.tmp")
	if err != nil {
		return nil, fmt.Errorf("a package needs disk space: %w", err)
	}
	_ = os.Remove(file.Name()) // a crash leaves nothing behind
	p.file = file
	if a, err = p.fetch(v); err == nil {
		o := DumpOptions{URL: a.URL, Limits: DumpLimits{Manifest: k.w.Limits}, Report: func(q Problem) { k.report(q, false) }}
		p.dump, err = NewDumpReader(p.file, p.size, o)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return a, nil
}

// fetch fetches the package into its file, and compares it with the stated length and
// hash. The answer is closed.
func (p *Package) fetch(v follow.Validators) (*follow.Answer, error) {
	k, most := p.walker, cmp.Or(p.walker.w.MaxPackage, maxPackage)
	refuse := func(limit, format string, args ...any) error {
		return &DumpError{URL: p.ref.URL, Cap: limit, Reason: "the package is refused: " + fmt.Sprintf(format, args...)}
	}
	if p.ref.Length > most {
		return nil, refuse("package", "it has %d bytes; want at most %d", p.ref.Length, most)
	}
	check, begun := NewHashCheck(p.ref.Hash), follow.Validators{}
	var n, best int64
	for broken := 0; ; broken++ {
		a, err := k.client.GetFile(k.ctx, p.ref.URL, v, n)
		other := n > 0 && (err == nil && a.Offset > 0 && replaced(begun, a.Validators) || follow.Status(err) == http.StatusRequestedRangeNotSatisfiable)
		switch {
		case other && broken < brokenMost: // it is another package by now: from the beginning
			if err == nil {
				a.Close()
			}
			n, v = 0, follow.Validators{}
			continue
		case err != nil:
			return nil, statusError(err)
		case other:
			a.Close()
			return nil, refuse("", "it was replaced while it was downloaded")
		}
		if a.Offset == 0 {
			check, n, begun = NewHashCheck(p.ref.Hash), 0, a.Validators
		}
		to := &fileWriter{file: p.file, at: n, check: check}
		limit := most
		if p.ref.Length >= 0 {
			limit = p.ref.Length
		}
		_, err = io.Copy(to, io.LimitReader(a.Body, limit-n+1))
		a.Close()
		if to.at > best {
			broken, best = 0, to.at
		}
		switch n = to.at; {
		case to.err != nil:
			return nil, fmt.Errorf("a package needs disk space: %w", to.err)
		case n > limit && p.ref.Length >= 0:
			return nil, refuse("", "it has more bytes than the %d that the dump says", p.ref.Length)
		case n > limit:
			return nil, refuse("package", "it has more than %d bytes", most)
		case err != nil && (k.ctx.Err() != nil || broken >= brokenMost):
			return nil, err
		case err != nil && begun == (follow.Validators{}):
			n = 0 // the rest may be of another file
		case err == nil && p.ref.Length >= 0 && n != p.ref.Length:
			return nil, refuse("", "it has %d bytes, the dump says %d", n, p.ref.Length)
		case err == nil:
			if why := check.Differs(); why != "" {
				return nil, refuse("", "%s", why)
			}
			p.size = n
			return a, nil
		}
		v = begun
		if n == 0 {
			v = follow.Validators{}
		}
	}
}

// replaced reports whether the validators of a file, and those of its rest, show that it is not the
// same any more: some servers ignore If-Range.
func replaced(begun, rest follow.Validators) bool {
	if begun.ETag != "" && rest.ETag != "" {
		return begun.ETag != rest.ETag
	}
	return begun.LastModified != "" && rest.LastModified != "" && begun.LastModified != rest.LastModified
}

// fileWriter writes into a file from an offset on, and keeps the error of its last write.
type fileWriter struct {
	file  *os.File
	at    int64
	check *HashCheck
	err   error
}

// Write implements io.Writer.
func (w *fileWriter) Write(b []byte) (n int, err error) {
	n, w.err = w.file.WriteAt(b, w.at)
	w.at += int64(n)
	_, _ = w.check.Write(b[:n])
	return n, w.err
}

// openPackage opens the manifest of a package: its copy, if there is one, else that in
// the package itself.
func (k *walker) openPackage(s step) (*List, error) {
	p := &Package{walker: k, ref: *s.Package}
	if p.ref.Copy != "" {
		l, err := k.openCopy(s, p)
		if l != nil || err != nil {
			return l, err
		}
	}
	a, err := p.download(s.Validators)
	if err != nil {
		return nil, err
	}
	l := &List{Requested: s.URL, URL: a.URL, Date: a.Date, walker: k, answer: a, pack: p}
	p.dump.o.Report, p.list = l.problem, l
	if l.reader, err = p.dump.manifest(); err == nil {
		_, err = l.reader.Head()
	}
	if err != nil {
		p.close()
		return nil, err
	}
	l.identify(s.URL)
	return l, nil
}

// openCopy opens the copy of a manifest; nil when there is none that could be used.
func (k *walker) openCopy(s step, p *Package) (*List, error) {
	l, err := k.open(p.ref.Copy, s.Validators)
	if err == nil {
		if c := l.Head().Capability; c.manifest() && !l.Head().Index {
			l.pack, p.list, p.copied = p, l, newSummary()
			l.Requested = s.URL
			l.identify(s.URL)
			return l, nil
		}
		err = fmt.Errorf("%s is a %s, want a manifest", l.URL, l.Head().Capability)
		l.close()
	} else if !missing(err) && !errors.Is(err, ErrRefused) && !refusedOrFailed(err) {
		return nil, err
	}
	k.report(Problem{Rule: ruleMissing, URL: p.ref.Copy, Found: err.Error(), Expected: "a copy of the manifest of " + p.ref.URL + "; the package itself is read"}, false)
	return nil, nil
}

// refusedOrFailed reports whether a server refuses a document (401, 403) or fails (5xx).
func refusedOrFailed(err error) bool {
	s := follow.Status(err)
	return s == http.StatusUnauthorized || s == http.StatusForbidden || s >= http.StatusInternalServerError
}

// newSummary returns the hash to which summarize adds the entries of a manifest.
func newSummary() hash.Hash { return sha256.New() }

// summarize adds an entry and what it states about bitstreams; nil is an entry that cannot be
// taken.
func summarize(to hash.Hash, e *Entry) {
	if e == nil {
		writeFields(to, "bad")
		return
	}
	m := &e.Metadata
	writeFields(to, e.Loc, m.Change, m.Datetime.String(), m.Path, Hashes(m.Hash), fmt.Sprint(m.Length))
	for i := range e.Links {
		if l := &e.Links[i]; l.Path != "" {
			writeFields(to, l.Rel, l.Href, l.Path, Hashes(l.Hash), fmt.Sprint(l.Length))
		}
	}
}

// substitute replaces closed Change Lists that were not read yet by packages of the Change Dump
// that have the same from and until: a package has the bytes of all its changes too.
func (k *walker) substitute(stream *stream, lists []step) error {
	if !k.w.Contents || stream.ChangeList == "" || stream.ChangeDump == "" {
		return nil
	}
	unread := func(s *step) bool {
		return s.Package == nil && !s.From.IsZero() && s.From.Before(s.Until) && !s.From.Before(stream.Mark) && s.Validators == follow.Validators{}
	}
	oldest := slices.IndexFunc(lists, func(s step) bool { return unread(&s) })
	if oldest < 0 {
		return nil
	}
	// Only these are kept, whatever else a dump names.
	found := map[[2]int64]*packageRef{}
	for i := range lists {
		if s := &lists[i]; unread(s) {
			found[interval(s.From, s.Until)] = nil
		}
	}
	if err := k.findPackages(stream.ChangeDump, lists[oldest].From, 0, found); err != nil {
		return err
	}
	for i := range lists {
		if s := &lists[i]; unread(s) {
			s.Package = found[interval(s.From, s.Until)]
		}
	}
	return nil
}

// interval is the key of the time that a list and a package have in common.
func interval(from, until time.Time) [2]int64 { return [2]int64{from.UnixNano(), until.UnixNano()} }

// findPackages finds the packages of a Change Dump, or of an index of some, that reach
// beyond a time and have one of the intervals in found. It goes on without what is missing
// or fails.
func (k *walker) findPackages(at string, since time.Time, depth int, found map[[2]int64]*packageRef) error {
	l, err := k.open(at, follow.Validators{})
	var deeper []string
	if err == nil {
		index := l.Head().Index
		_, err = l.entries(func(e *Entry) {
			from, until := e.Metadata.From.Time(), e.Metadata.Until.Time()
			switch {
			case !until.IsZero() && !until.After(since):
			case index:
				deeper = append(deeper, e.Loc)
			case !from.IsZero() && !until.IsZero():
				if _, wanted := found[interval(from, until)]; wanted {
					found[interval(from, until)] = packageOf(e)
				}
			}
		})
	}
	if err != nil {
		if k.ends(err) {
			return err
		}
		k.report(Problem{Rule: ruleMissing, URL: at, Found: err.Error(), Expected: "a Change Dump; Change Lists are read instead"}, false)
	}
	if depth == maxIndexes {
		return nil
	}
	for _, to := range deeper {
		if err := k.countOther(to); err != nil {
			return err
		}
		if err := k.findPackages(to, since, depth+1, found); err != nil {
			return err
		}
	}
	return nil
}
