package resourcesync

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"unicode/utf8"
)

// DumpWriter writes a package of a Resource Dump or a Change Dump: a ZIP file with
// bitstreams and the manifest that describes them (clauses 11.2 and 13.2). It writes in
// one pass, in memory that does not grow with the bitstreams; some 300 bytes are needed
// for each of them.
//
// The same entries and bitstreams give the same bytes: files are in the order of their entries,
// the manifest is the last, and all have the same date. Files of a media type that is
// compressed already are stored as they are, all others are deflated where that makes them
// smaller. The length of a long file follows its bytes, and a program that reads the package as a
// stream, as Java's ZipInputStream does, finds the end of deflated data only: so a long file that
// is to be stored becomes deflated data of stored blocks. No part of a file is deflated to less
// than a fiftieth, so no reader takes it for a decompression bomb. ZIP64 is used where lengths or
// numbers need it.
//
// Use it from one goroutine at a time. The first error but ErrFull ends it: every later call
// returns the same.
type DumpWriter struct {
	// MaxEntries limits the entries of the manifest, MaxManifest its bytes, and
	// MaxBytes those of all bitstreams together, by the lengths that their entries
	// state; 0, as NewDumpWriter leaves them, is no limit. An entry above them is
	// ErrFull; the first one is always taken.
	MaxEntries            int
	MaxManifest, MaxBytes int64

	out      *zip.Writer
	head     *Document
	manifest *Writer
	copy     io.ReadWriteSeeker // what manifest writes to
	names    map[string]bool    // paths in lower case
	bytes    int64              // of the bitstreams
	pack     packer
	err      error
}

// NewDumpWriter begins a package with the head of its manifest, whose capability is
// ResourceDumpManifest or ChangeDumpManifest. The package goes to w. The manifest is written to
// copy, an empty file, and read again by Close, which makes it the last file of the package.
// Afterwards a link of relation RelContents may lead to copy. Neither is closed.
func NewDumpWriter(w io.Writer, copy io.ReadWriteSeeker, head *Document) *DumpWriter {
	d := &DumpWriter{out: zip.NewWriter(w), head: head, copy: copy, manifest: NewWriter(copy, head), names: map[string]bool{"/" + ManifestName: true}}
	d.pack.block = make([]byte, packBlock)
	d.out.RegisterCompressor(zip.Deflate, d.pack.compressor)
	if !head.Capability.manifest() || head.Index {
		d.err = ruleError(ruleCapability, string(head.Capability), "the capability of a manifest")
	}
	return d
}

// Entry appends one entry and its bitstreams: open is called for the entry's own path and
// then for those of its links, with what the entry or the link states of the bitstream
// there. [DumpReader.Open] is such a function. Each path names another file of the
// package; an entry of a deletion has none.
//
// A bitstream that differs from the stated hash or length is a *DumpError; where an
// encoding is stated, these may be of the coded bytes, and are not compared. Entry keeps
// nothing of e.
func (d *DumpWriter) Entry(e *Entry, open func(*Metadata) (io.ReadCloser, error)) error {
	if d.err != nil {
		return d.err
	}
	var stated int64
	for m := range e.bitstreams() {
		if why := unusable(m.Path); why != "" {
			d.err = &DumpError{Path: m.Path, Reason: why}
			return d.err
		}
		n, _ := m.Length.Bytes()
		stated += n
	}
	if d.MaxBytes > 0 && d.manifest.Entries() > 0 && d.bytes+stated > d.MaxBytes {
		return ErrFull
	}
	d.manifest.MaxEntries, d.manifest.MaxBytes = d.MaxEntries, d.MaxManifest
	if err := d.manifest.Entry(e); err != nil {
		if !errors.Is(err, ErrFull) {
			d.err = err
		}
		return err
	}
	for m := range e.bitstreams() {
		name := strings.ToLower(m.Path) // not every file system tells them apart
		if d.names[name] {
			d.err = &DumpError{Path: m.Path, Reason: "the package has a file of that name already"}
		} else {
			d.names[name] = true
			d.err = d.add(&m, open)
		}
		if d.err != nil {
			return d.err
		}
	}
	return nil
}

// bitstreams yields what an entry and its links state of the bitstreams in the package.
func (e *Entry) bitstreams() func(yield func(Metadata) bool) {
	return func(yield func(Metadata) bool) {
		if e.Metadata.Path != "" && !yield(e.Metadata) {
			return
		}
		for i := range e.Links {
			if l := &e.Links[i]; l.Path != "" &&
				!yield(Metadata{Path: l.Path, Encoding: l.Encoding, Hash: l.Hash, Length: l.Length, Type: l.Type, Modified: l.Modified}) {
				return
			}
		}
	}
}

// unusable returns why a path cannot be that of a file of a package, "" when it can.
func unusable(path string) string {
	name, slashed := strings.CutPrefix(path, "/")
	switch {
	case !slashed:
		return "its path has no leading slash"
	case !utf8.ValidString(name):
		return "its path is not UTF-8"
	case strings.HasSuffix(name, "/"):
		return "its path is that of a folder"
	}
	return badName(name)
}

// add writes one bitstream.
func (d *DumpWriter) add(m *Metadata, open func(*Metadata) (io.ReadCloser, error)) error {
	in, err := open(m)
	if err != nil {
		return fmt.Errorf("%s: %w", m.Path, err)
	}
	defer in.Close()
	want, known := m.Length.Bytes()
	check := &HashCheck{}
	if m.Encoding == "" {
		check = NewHashCheck(Hashes(m.Hash))
	} else {
		known = false
	}
	n, err := d.write(m.Path[1:], compressed(m.Type), io.TeeReader(in, check))
	if err != nil {
		return fmt.Errorf("%s: %w", m.Path, err)
	}
	d.bytes += n
	if known && n != want {
		return &DumpError{Path: m.Path, Reason: fmt.Sprintf("it has %d bytes, its entry says %d", n, want)}
	}
	if why := check.Differs(); why != "" {
		return &DumpError{Path: m.Path, Reason: why}
	}
	return nil
}

// dosDate is the date of all files: 1980-01-01, the first that a ZIP file can have.
const dosDate = 1<<5 | 1

// write writes a file, and returns how many bytes it has. The header of a short one has its
// lengths; those of a long one follow its bytes.
func (d *DumpWriter) write(name string, stored bool, in io.Reader) (int64, error) {
	first, err := d.pack.read(in)
	header := &zip.FileHeader{Name: name, Method: zip.Deflate, ModifiedDate: dosDate} //nolint:staticcheck // Modified adds 18 bytes that say the same
	if err == io.EOF {
		packed := d.pack.whole(first)
		if stored || packed == nil {
			header.Method, packed = zip.Store, first
		}
		header.CRC32 = crc32.ChecksumIEEE(first)
		header.CompressedSize64, header.UncompressedSize64 = uint64(len(packed)), uint64(len(first))
		header.CreatorVersion, header.ReaderVersion = zipVersion, zipVersion
		if strings.ContainsFunc(name, func(c rune) bool { return c >= utf8.RuneSelf }) {
			header.Flags |= nameInUTF8
		}
		out, err := d.out.CreateRaw(header)
		if err == nil {
			_, err = out.Write(packed)
		}
		return int64(len(first)), err
	}
	if err != nil {
		return 0, err
	}
	d.pack.asIs = stored
	out, err := d.out.CreateHeader(header)
	n := int64(0)
	for block := first; err == nil && len(block) > 0; {
		n += int64(len(block))
		if _, err = out.Write(block); err == nil {
			if block, err = d.pack.read(in); err == io.EOF {
				err = nil
			}
		}
	}
	return n, err
}

const (
	zipVersion = 20      // of PKWARE's description: 2.0, with deflate
	nameInUTF8 = 1 << 11 // a flag
)

// Close ends the package with its manifest.
func (d *DumpWriter) Close() error {
	if d.err != nil {
		return d.err
	}
	if d.err = d.manifest.Close(); d.err != nil {
		return d.err
	}
	if _, d.err = d.copy.Seek(0, io.SeekStart); d.err != nil {
		return d.err
	}
	n, err := d.write(ManifestName, false, d.copy)
	if err == nil && n != d.manifest.Size() {
		err = fmt.Errorf("resourcesync: the file of the manifest has %d bytes, and %d were written to it", n, d.manifest.Size())
	}
	if err == nil {
		err = d.out.Close()
	}
	if d.err = err; err == nil {
		d.err = errClosed
	}
	return err
}

// Entries counts the entries written so far.
func (d *DumpWriter) Entries() int { return d.manifest.Entries() }

// packBlock is how many bytes are deflated at a time. With blocks of this length the deflated
// bytes do not depend on how a reader returns them.
const packBlock = 256 << 10

// packer deflates blocks, each by itself. A block that deflating would make no smaller, or
// suspiciously small, is stored inside the deflated data.
type packer struct {
	asIs   bool // every block of the file that is written is stored
	block  []byte
	packed bytes.Buffer
	flate  *flate.Writer
}

// read reads the next block. A shorter one than packBlock comes with io.EOF, if need be an
// empty one.
func (p *packer) read(in io.Reader) ([]byte, error) {
	n, err := io.ReadFull(in, p.block)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return p.block[:n], err
}

// start empties packed and lets flate write to it.
func (p *packer) start() {
	p.packed.Reset()
	if p.flate == nil {
		p.flate, _ = flate.NewWriter(&p.packed, flate.BestSpeed) // no error with this level
		return
	}
	p.flate.Reset(&p.packed)
}

// useful returns what was deflated of n bytes, nil when the bytes had better be stored.
func (p *packer) useful(n int) []byte {
	if b := p.packed.Bytes(); len(b) < n && n/(maxRatio/2) <= len(b) {
		return b
	}
	return nil
}

// whole deflates a file of one block; nil when it had better be stored.
func (p *packer) whole(b []byte) []byte {
	p.start()
	_, _ = p.flate.Write(b) // a bytes.Buffer never fails
	_ = p.flate.Close()
	return p.useful(len(b))
}

// compressor deflates a file of several blocks, one with each Write.
func (p *packer) compressor(w io.Writer) (io.WriteCloser, error) { return &blockWriter{p, w}, nil }

type blockWriter struct {
	*packer
	w io.Writer
}

// storedMost is how many bytes a stored block of deflated data has at most (RFC 1951
// 3.2.4).
const storedMost = 1<<16 - 1

// Write implements io.Writer. Deflated data always ends at a byte here, where a stored
// block begins with three zero bits.
func (b *blockWriter) Write(p []byte) (int, error) {
	if !b.asIs {
		b.start()
		_, _ = b.flate.Write(p)
		_ = b.flate.Flush()
		if packed := b.useful(len(p)); packed != nil {
			_, err := b.w.Write(packed)
			return len(p), err
		}
	}
	for rest := p; len(rest) > 0; {
		n := min(len(rest), storedMost)
		if err := b.stored(0, rest[:n]); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// stored writes a stored block; last is 1 for the last block of all.
func (b *blockWriter) stored(last byte, p []byte) error {
	head := []byte{last, 0, 0, 0, 0}
	binary.LittleEndian.PutUint16(head[1:], uint16(len(p)))
	binary.LittleEndian.PutUint16(head[3:], ^uint16(len(p)))
	if _, err := b.w.Write(head); err != nil {
		return err
	}
	_, err := b.w.Write(p)
	return err
}

// Close implements io.Closer.
func (b *blockWriter) Close() error { return b.stored(1, nil) }

// compressed reports whether files of a media type are compressed already.
func compressed(mediaType string) bool {
	kind, _, _ := strings.Cut(mediaType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	top, sub, _ := strings.Cut(kind, "/")
	switch top {
	case "video":
		return true
	case "image":
		return sub != "bmp" && sub != "tiff" && !strings.HasSuffix(sub, "+xml") && !strings.HasPrefix(sub, "x-")
	case "audio":
		return sub != "wav" && sub != "basic" && !strings.HasPrefix(sub, "x-")
	case "font":
		return strings.HasPrefix(sub, "woff")
	}
	switch sub {
	case "zip", "gzip", "x-gzip", "zstd", "x-bzip2", "x-xz", "x-7z-compressed", "vnd.rar", "java-archive", "pdf", "epub+zip":
		return true
	}
	return strings.HasSuffix(sub, "+zip") || strings.HasSuffix(sub, "+gzip") ||
		strings.HasPrefix(sub, "vnd.openxmlformats-") || strings.HasPrefix(sub, "vnd.oasis.opendocument.")
}
