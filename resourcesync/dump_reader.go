package resourcesync

import (
	"bufio"
	"cmp"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/pmh-bridge/bridge/internal/strictxml"
)

// ManifestName is the name of the manifest in a package (clauses 11.2 and 13.2).
const ManifestName = "manifest.xml"

// DumpLimits caps the size of a package. The zero value of a field means its default.
type DumpLimits struct {
	// Files is how many files a package may have; 0 is 262,144.
	Files int
	// Directory is how many bytes the ZIP file's central directory may have; 0 is
	// 32 MiB.
	Directory int64
	// File is how many bytes one file may have, unpacked; 0 is 1 TiB.
	File int64
	// Manifest caps the manifest, as every document.
	Manifest Limits
}

// DumpOptions are the options of a DumpReader. The zero value is valid.
type DumpOptions struct {
	// URL is that of the package. Errors name it, and references in the manifest are
	// resolved against it.
	URL    string
	Limits DumpLimits
	// Strict checks the rules that no Destination depends on too, see ReadOptions.Strict.
	Strict bool
	// Report is called with each place where the manifest breaks a rule and can be
	// read all the same; nil is allowed. It is called from within NewDumpReader and
	// Entries.
	Report func(Problem)
}

// DumpError is why a package, or one file in it, cannot be used.
type DumpError struct {
	URL string // of the package
	// Path is that of the file, as the package or its manifest has it; "" where the
	// package as a whole is at fault.
	Path string
	// Cap is the exceeded limit: "files", "directory" or "file", as the field of DumpLimits,
	// "ratio" or, in a Walk, "package" (Walk.MaxPackage). It is "" when no limit was exceeded.
	Cap string
	// Reason says what is wrong and what was expected.
	Reason string
}

// Error returns the place and the reason.
func (e *DumpError) Error() string {
	at := cmp.Or(e.URL, "package")
	if e.Path != "" {
		at += fmt.Sprintf(", file %q", strictxml.Clip(e.Path))
	}
	return at + ": " + e.Reason
}

// DumpReader reads a package of a Resource Dump or a Change Dump (clauses 11 and 13): a
// ZIP file with a manifest. It unpacks nothing to a disk.
//
// It refuses as a whole each package that is not plainly well formed: names that are absolute
// or lead out of the package, names that differ in letter case only, links and other special
// files, encrypted files, files that share bytes, directories that contradict each other. A
// file that differs from what the package or the manifest states is an error when it is read.
//
// Call Entries from one goroutine at a time; Open may be called from any.
type DumpReader struct {
	in       io.ReaderAt
	o        DumpOptions
	files    map[string]packedFile // by folded name
	memory   int64
	head     *Document
	unpacked sync.Pool // of flate.Resetter
}

// packedFile is what the central directory states about a file, and where the next one begins.
type packedFile struct {
	name           string
	offset, end    int64 // of the local header; of all that may belong to the file
	packed, length int64
	crc            uint32
	method         uint16
}

// fileCost is about how many bytes of memory a file takes besides its name.
const fileCost = 200

const (
	// The compression methods that are read.
	methodStored   = 0
	methodDeflated = 8

	// The signatures and fixed lengths of the records of a ZIP file (PKWARE
	// APPNOTE 6.3.10, 4.3), and what stands in a field whose value is in ZIP64
	// fields.
	localSignature     = 0x04034b50
	directorySignature = 0x02014b50
	endSignature       = 0x06054b50
	end64Signature     = 0x06064b50
	locatorSignature   = 0x07064b50
	localLength        = 30
	directoryLength    = 46
	endLength          = 22
	end64Length        = 56
	locatorLength      = 20
	elsewhere16        = math.MaxUint16
	elsewhere32        = math.MaxUint32
)

// NewDumpReader opens the package of size bytes in in, and reads the head of its
// manifest. The error is a *DumpError, a *DocumentError for the manifest, or that of
// in.
func NewDumpReader(in io.ReaderAt, size int64, o DumpOptions) (*DumpReader, error) {
	l := &o.Limits
	l.Files, l.Directory, l.File = cmp.Or(l.Files, 1<<18), cmp.Or(l.Directory, 32<<20), cmp.Or(l.File, 1<<40)
	d := &DumpReader{in: in, o: o, files: map[string]packedFile{}}
	if err := d.readDirectory(size); err != nil {
		return nil, err
	}
	r, err := d.manifest()
	if err != nil {
		return nil, err
	}
	if d.head, err = r.Head(); err != nil {
		return nil, err
	}
	if c := d.head.Capability; !c.manifest() {
		return nil, d.refuse("its manifest has the capability %q; want %s or %s", strictxml.Clip(string(c)), ResourceDumpManifest, ChangeDumpManifest)
	}
	return d, nil
}

// refuse returns the error for a package as a whole.
func (d *DumpReader) refuse(format string, args ...any) *DumpError {
	return &DumpError{URL: d.o.URL, Reason: "the package is refused: " + fmt.Sprintf(format, args...)}
}

// refuseFile returns the error for a package as a whole, because of one file.
func (d *DumpReader) refuseFile(name, format string, args ...any) *DumpError {
	e := d.refuse(format, args...)
	e.Path = name
	return e
}

// zipEnd is what the end of a ZIP file states about its central directory.
type zipEnd struct{ offset, size, files int64 }

// readDirectory reads the central directory, and refuses a ZIP file that can be read in
// more than one way, or that has what no package needs.
func (d *DumpReader) readDirectory(size int64) error {
	e, err := d.findEnd(size)
	if err != nil {
		return err
	}
	if most := int64(d.o.Limits.Files); e.files > most {
		err := d.refuse("it has %d files; want at most %d", e.files, most)
		err.Cap = "files"
		return err
	}
	if most := d.o.Limits.Directory; e.size > most {
		err := d.refuse("its central directory has %d bytes; want at most %d", e.size, most)
		err.Cap = "directory"
		return err
	}
	d.memory = fileCost*e.files + 2*e.size
	in := bufio.NewReaderSize(io.NewSectionReader(d.in, e.offset, e.size), 64<<10)
	left := e.size
	var places []packedFile // with folded names, folders included
	for range e.files {
		f, n, err := d.readRecord(in, left)
		if err != nil {
			return err
		}
		left -= n
		if f.offset+localLength+f.packed > e.offset {
			return d.refuseFile(f.name, "its bytes reach into the central directory")
		}
		key := strings.ToLower(f.name)
		if other, twice := d.files[key]; twice {
			return d.refuseFile(f.name, "its name is, but perhaps for letter case, also that of the file %q", strictxml.Clip(other.name))
		}
		d.files[key] = f
		places = append(places, packedFile{name: key, offset: f.offset, packed: f.packed})
	}
	if left != 0 {
		return d.refuse("its central directory has %d bytes more than its %d files need", left, e.files)
	}
	slices.SortFunc(places, func(a, b packedFile) int { return cmp.Compare(a.offset, b.offset) })
	for i, p := range places {
		f := d.files[p.name]
		f.end = e.offset
		if i+1 < len(places) {
			f.end = places[i+1].offset
		}
		if p.offset+localLength+int64(len(f.name))+p.packed > f.end {
			return d.refuseFile(f.name, "it shares bytes with the file %q", strictxml.Clip(d.files[places[min(i+1, len(places)-1)].name].name))
		}
		d.files[p.name] = f
	}
	for _, p := range places {
		if strings.HasSuffix(p.name, "/") {
			delete(d.files, p.name)
		}
	}
	return nil
}

// findEnd finds the end record, and returns what it states about the central directory.
func (d *DumpReader) findEnd(size int64) (zipEnd, error) {
	tail := make([]byte, min(size, endLength+math.MaxUint16+locatorLength))
	if err := d.readAt(tail, size-int64(len(tail))); err != nil {
		return zipEnd{}, err
	}
	at := -1
	for i := len(tail) - endLength; i >= 0; i-- {
		if binary.LittleEndian.Uint32(tail[i:]) == endSignature && i+endLength+int(binary.LittleEndian.Uint16(tail[i+20:])) == len(tail) {
			at = i
			break
		}
	}
	if at < 0 {
		return zipEnd{}, d.refuse("it is no ZIP file, or was cut off")
	}
	b := tail[at:]
	u16, u32 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32
	e := zipEnd{files: int64(u16(b[10:])), size: int64(u32(b[12:])), offset: int64(u32(b[16:]))}
	if u16(b[4:]) != 0 || u16(b[6:]) != 0 || u16(b[8:]) != u16(b[10:]) {
		return zipEnd{}, d.refuse("it is one part of a ZIP file in several")
	}
	border := size - int64(len(tail)-at)
	if at >= locatorLength && u32(tail[at-locatorLength:]) == locatorSignature {
		border -= locatorLength
		var err error
		if e, border, err = d.readEnd64(tail[at-locatorLength:at], border, e); err != nil {
			return zipEnd{}, err
		}
	}
	if e.offset < 0 || e.size < 0 || e.files < 0 || e.size > border || e.offset != border-e.size {
		return zipEnd{}, d.refuse("its end record states a central directory of %d bytes at %d, which does not end where the end record begins, at %d", e.size, e.offset, border)
	}
	return e, nil
}

// readEnd64 reads the ZIP64 end record, which a locator before border names. Each value of the
// end record, short, must be the same, or the mark that it stands in the ZIP64 one.
func (d *DumpReader) readEnd64(locator []byte, border int64, short zipEnd) (zipEnd, int64, error) {
	u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	at := u64(locator[8:])
	if u32(locator[4:]) != 0 || u32(locator[16:]) > 1 || border < end64Length || at > uint64(border-end64Length) {
		return zipEnd{}, 0, d.refuse("its ZIP64 locator leads to %d, where no ZIP64 end record can be", at)
	}
	b := make([]byte, end64Length)
	if err := d.readAt(b, int64(at)); err != nil {
		return zipEnd{}, 0, err
	}
	if u32(b) != end64Signature || u64(b[4:]) != uint64(border)-at-12 || u32(b[16:]) != 0 || u32(b[20:]) != 0 || u64(b[24:]) != u64(b[32:]) {
		return zipEnd{}, 0, d.refuse("its ZIP64 end record does not stand where its locator leads, or is no valid one")
	}
	e := zipEnd{files: int64(u64(b[32:])), size: int64(u64(b[40:])), offset: int64(u64(b[48:]))}
	if short.files != elsewhere16 && short.files != e.files || short.size != elsewhere32 && short.size != e.size || short.offset != elsewhere32 && short.offset != e.offset {
		return zipEnd{}, 0, d.refuse("its end record and its ZIP64 end record contradict each other")
	}
	return e, int64(at), nil
}

// readRecord reads what the central directory states about one file, at most left bytes.
func (d *DumpReader) readRecord(in *bufio.Reader, left int64) (f packedFile, n int64, err error) {
	if left < directoryLength {
		return f, 0, d.refuse("its central directory ends within a file")
	}
	b := make([]byte, directoryLength)
	if _, err := io.ReadFull(in, b); err != nil {
		return f, 0, d.broken(err)
	}
	u16, u32 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32
	if u32(b) != directorySignature {
		return f, 0, d.refuse("its central directory has something else where a file should begin")
	}
	names, extras, comments := int(u16(b[28:])), int(u16(b[30:])), int(u16(b[32:]))
	if n = directoryLength + int64(names+extras+comments); n > left {
		return f, 0, d.refuse("its central directory ends within a file")
	}
	rest := make([]byte, names+extras+comments)
	if _, err := io.ReadFull(in, rest); err != nil {
		return f, 0, d.broken(err)
	}
	f = packedFile{name: string(rest[:names]), method: u16(b[10:]), crc: u32(b[16:]),
		packed: int64(u32(b[20:])), length: int64(u32(b[24:])), offset: int64(u32(b[42:]))}
	if why := badName(f.name); why != "" {
		return f, 0, d.refuseFile(f.name, "%s", why)
	}
	folder := strings.HasSuffix(f.name, "/")
	mode := u32(b[38:]) >> 16 & 0o170000 // of Unix: what kind of file it is
	switch flags := u16(b[8:]); {
	case flags&(1|1<<6|1<<13) != 0:
		return f, 0, d.refuseFile(f.name, "it is encrypted")
	case mode != 0 && mode != 0o100000 && (mode != 0o040000 || !folder):
		return f, 0, d.refuseFile(f.name, "it is a link or another special file")
	case u16(b[34:]) != 0:
		return f, 0, d.refuseFile(f.name, "it begins in another part of a ZIP file")
	}
	if f.packed, f.length, f.offset, err = d.readExtra(&f, rest[names:names+extras]); err != nil {
		return f, 0, err
	}
	if f.packed < 0 || f.length < 0 || f.offset < 0 || f.packed > math.MaxInt64/4 || f.offset > math.MaxInt64/4 {
		return f, 0, d.refuseFile(f.name, "its lengths or its place cannot be true")
	}
	if folder && f.length != 0 {
		return f, 0, d.refuseFile(f.name, "it is a folder with bytes of its own")
	}
	if f.method == methodStored && f.packed != f.length {
		return f, 0, d.refuseFile(f.name, "it is stored as it is, with %d bytes, and its header states %d", f.packed, f.length)
	}
	return f, n, nil
}

// readExtra returns the lengths and the place of a file, from its ZIP64 field where they
// stand there.
func (d *DumpReader) readExtra(f *packedFile, extra []byte) (packed, length, offset int64, err error) {
	packed, length, offset = f.packed, f.length, f.offset
	var field []byte
	for len(extra) >= 4 {
		id, n := binary.LittleEndian.Uint16(extra), int(binary.LittleEndian.Uint16(extra[2:]))
		if extra = extra[4:]; n > len(extra) {
			break
		}
		if id == 1 {
			if field != nil {
				return 0, 0, 0, d.refuseFile(f.name, "it has two ZIP64 fields")
			}
			field = extra[:n:n]
		}
		extra = extra[n:]
	}
	for _, v := range []*int64{&length, &packed, &offset} { // in this order (4.5.3)
		if *v != elsewhere32 {
			continue
		}
		if len(field) < 8 {
			return 0, 0, 0, d.refuseFile(f.name, "its ZIP64 field lacks a length or the place")
		}
		*v, field = int64(binary.LittleEndian.Uint64(field)), field[8:]
	}
	return packed, length, offset, nil
}

// badName returns why no file of a package may have a name, "" when it may.
func badName(name string) string {
	switch {
	case name == "":
		return "a file has no name"
	case name[0] == '/' || len(name) > 1 && name[1] == ':':
		return "its name is an absolute path; want one relative to the package"
	case strings.Contains(name, `\`):
		return "its name has a back slash; want slashes"
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] == 0x7f {
			return "its name has a control character"
		}
	}
	for segment := range strings.SplitSeq(strings.TrimSuffix(name, "/"), "/") {
		switch segment {
		case "..":
			return "its name leads out of the package"
		case "", ".":
			return "its name has an empty segment"
		}
	}
	return ""
}

// readAt reads exactly the bytes of b.
func (d *DumpReader) readAt(b []byte, at int64) error {
	n, err := d.in.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	return d.broken(err)
}

// broken returns an error of the underlying reader; an early end is a *DumpError.
func (d *DumpReader) broken(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return d.refuse("it is shorter than it was said to be")
	}
	return fmt.Errorf("%s: %w", cmp.Or(d.o.URL, "package"), err)
}

// manifest opens the manifest from its beginning.
func (d *DumpReader) manifest() (*Reader, error) {
	f, ok := d.files[ManifestName]
	if !ok || f.name != ManifestName {
		return nil, d.refuse("it has no %s at its top level", ManifestName)
	}
	in, err := d.open(&f, Metadata{Path: "/" + ManifestName})
	if err != nil {
		return nil, err
	}
	return NewReader(in, ReadOptions{URL: d.o.URL, ContentType: "application/xml", Limits: d.o.Limits.Manifest, Strict: d.o.Strict, Report: d.o.Report}), nil
}

// Memory returns about how many bytes of memory the reader takes: for each file, however
// long, a few hundred.
func (d *DumpReader) Memory() int64 { return d.memory }

// Manifest returns the head of the manifest.
func (d *DumpReader) Manifest() *Document { return d.head }

// Entries returns the entries of the manifest, each as an *Entry or, as the error, an
// *EntryError for one that cannot be taken. Any other error is the last value. Each loop
// begins anew.
func (d *DumpReader) Entries() iter.Seq2[*Entry, error] {
	return func(yield func(*Entry, error) bool) {
		r, err := d.manifest()
		for err == nil {
			var e *Entry
			e, err = r.Next()
			if err == io.EOF {
				return
			}
			if _, bad := err.(*EntryError); bad { //nolint:errorlint // Reader.Next returns it bare
				if !yield(nil, err) {
					return
				}
				err = nil
				continue
			}
			if err == nil && !yield(e, nil) {
				return
			}
		}
		yield(nil, err)
	}
}

// Open opens the bitstream at m.Path, where m is the Metadata of an entry of the manifest, or
// what one of its links with a path states. A leading slash, which it should have, may be
// missing. Reading it fails with a *DumpError where the bytes are not those that the package,
// or the Hash and the Length of m, state; they are checked only at io.EOF. Where m has an
// Encoding, its hash and length may be of the coded bytes, and are not compared.
func (d *DumpReader) Open(m *Metadata) (io.ReadCloser, error) {
	fail := func(format string, args ...any) (io.ReadCloser, error) {
		return nil, &DumpError{URL: d.o.URL, Path: m.Path, Reason: fmt.Sprintf(format, args...)}
	}
	name := strings.TrimPrefix(m.Path, "/")
	if name == "" {
		return fail("the manifest names no path")
	}
	if why := badName(name); why != "" || strings.HasSuffix(name, "/") || !utf8.ValidString(name) {
		return fail("the path that the manifest names is none of a file in a package: %s", cmp.Or(why, "it is that of a folder"))
	}
	f, ok := d.files[strings.ToLower(name)]
	if !ok || f.name != name {
		return fail("the manifest names it, and the package does not have it")
	}
	if n, known := m.Length.Bytes(); known && m.Encoding == "" && n != f.length {
		return fail("it has %d bytes, the manifest says %d", f.length, n)
	}
	return d.open(&f, *m)
}

// open opens a file, after comparing its local header with the central directory.
func (d *DumpReader) open(f *packedFile, m Metadata) (io.ReadCloser, error) {
	fail := func(limit, format string, args ...any) (io.ReadCloser, error) {
		return nil, &DumpError{URL: d.o.URL, Path: m.Path, Cap: limit, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case f.length > d.o.Limits.File:
		return fail("file", "it has %d bytes; want at most %d", f.length, d.o.Limits.File)
	case f.length > ratioFloor && f.length/maxRatio > f.packed:
		return fail("ratio", "it unpacks to more than %d times its size", maxRatio)
	case f.method != methodStored && f.method != methodDeflated:
		return fail("", "its compression method %d is not known; want stored or deflated", f.method)
	}
	header := make([]byte, localLength+len(f.name))
	if err := d.readAt(header, f.offset); err != nil {
		return nil, err
	}
	u16, u32 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32
	flags := u16(header[6:])
	same := func(at int, value int64) bool {
		stated := int64(u32(header[at:]))
		return stated == value || stated == elsewhere32 || flags&(1<<3) != 0 && stated == 0
	}
	if u32(header) != localSignature || string(header[localLength:]) != f.name || int(u16(header[26:])) != len(f.name) || flags&1 != 0 ||
		u16(header[8:]) != f.method || !same(14, int64(f.crc)) || !same(18, f.packed) || !same(22, f.length) {
		return fail("", "its own header and the central directory of the package contradict each other")
	}
	begin := f.offset + localLength + int64(len(f.name)) + int64(u16(header[28:]))
	if begin+f.packed > f.end {
		return fail("", "it shares bytes with another file of the package")
	}
	in := bufio.NewReader(io.NewSectionReader(d.in, begin, f.packed))
	b := &bitstream{d: d, path: m.Path, length: f.length, crc: f.crc, packed: in, sum: crc32.NewIEEE(), check: &HashCheck{}}
	if m.Encoding == "" {
		b.check = NewHashCheck(Hashes(m.Hash))
	}
	b.in = io.Reader(in)
	if f.method == methodDeflated {
		if z, ok := d.unpacked.Get().(io.ReadCloser); ok && z.(flate.Resetter).Reset(in, nil) == nil { //nolint:forcetypeassert // of flate, as all in the pool
			b.flate = z
		} else {
			b.flate = flate.NewReader(in)
		}
		b.in = b.flate
	}
	return b, nil
}

// bitstream is an open file of a package.
type bitstream struct {
	d      *DumpReader
	path   string
	in     io.Reader     // its bytes
	packed *bufio.Reader // as they are in the package
	flate  io.ReadCloser // nil when it is stored as it is
	length int64
	crc    uint32
	n      int64 // bytes so far
	sum    hash.Hash32
	check  *HashCheck
	err    error // what all further Reads return
}

// Read implements io.Reader.
func (b *bitstream) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.in.Read(p)
	b.n += int64(n)
	if b.n > b.length {
		return 0, b.fail("it has more bytes than the %d that the package says", b.length)
	}
	b.sum.Write(p[:n])
	_, _ = b.check.Write(p[:n])
	switch {
	case err == io.EOF:
		if b.err = b.whole(); b.err == nil {
			b.err = io.EOF
		}
		if b.err != io.EOF {
			n = 0
		}
	case err == io.ErrUnexpectedEOF:
		return 0, b.fail("it ends within its bytes")
	case err != nil:
		if _, corrupt := err.(flate.CorruptInputError); corrupt { //nolint:errorlint // flate returns it bare
			return 0, b.fail("it cannot be unpacked: %v", err)
		}
		b.err = b.d.broken(err)
	}
	return n, b.err
}

// whole returns why what was read to its end is not the stated file, nil when it is.
func (b *bitstream) whole() error {
	_, more := b.packed.ReadByte()
	switch {
	case b.n != b.length:
		return b.fail("it has %d bytes, the package says %d", b.n, b.length)
	case more != io.EOF:
		return b.fail("its place in the package has bytes that do not belong to it")
	case b.sum.Sum32() != b.crc:
		return b.fail("its CRC-32 is %08x, the package says %08x", b.sum.Sum32(), b.crc)
	}
	if why := b.check.Differs(); why != "" {
		return b.fail("%s", why)
	}
	return nil
}

func (b *bitstream) fail(format string, args ...any) error {
	b.err = &DumpError{URL: b.d.o.URL, Path: b.path, Reason: fmt.Sprintf(format, args...)}
	return b.err
}

// Close implements io.Closer.
func (b *bitstream) Close() error {
	if b.flate != nil {
		b.d.unpacked.Put(b.flate)
		b.flate = nil
	}
	if b.err == nil {
		b.err = fmt.Errorf("%s: read after Close", b.path)
	}
	return nil
}
