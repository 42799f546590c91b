package testenv

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
)

// ZipFile is a file of a ZIP file that Zip makes, with the false statements about it.
type ZipFile struct {
	Name, Data string
	Deflated   bool
	Mode       uint32 // of Unix, with the kind of the file; 0 states none
	Flags      uint16
	Method     uint16 // stated instead of 0 and 8
	// Length, CRC and Local are stated in place of the true length, CRC-32 and name in
	// the local header; zero values are the true ones.
	Length int64
	CRC    uint32
	Local  string
	// Shared means that it has no bytes of its own, but those of the file before it.
	Shared bool
	// Zip64 writes the lengths in a ZIP64 field.
	Zip64 bool
	// Tail is written after its bytes and counted with them.
	Tail string
}

// ZipEnd changes the end records of a ZIP file.
type ZipEnd struct {
	Files, Size, Offset int // added to the true numbers
	Zip64               bool
	Zip64Files          int // added in the ZIP64 end record only
	Disk                uint16
	Front, Comment      string // bytes before everything, and after it
}

// Zip returns a ZIP file exactly as described, even if it is invalid.
func Zip(e ZipEnd, files ...ZipFile) []byte {
	le := binary.LittleEndian
	var b, directory bytes.Buffer
	b.WriteString(e.Front)
	at := 0
	for i := range files {
		f := &files[i]
		data, method := []byte(f.Data), uint16(0)
		if f.Deflated {
			var packed bytes.Buffer
			z, _ := flate.NewWriter(&packed, flate.BestCompression)
			_, _ = z.Write(data)
			_ = z.Close()
			data, method = packed.Bytes(), 8
		}
		data = append(data, f.Tail...)
		if f.Method != 0 {
			method = f.Method
		}
		length, crc, local := int64(len(f.Data)), crc32.ChecksumIEEE([]byte(f.Data)), f.Name
		if f.Length != 0 {
			length = f.Length
		}
		if f.CRC != 0 {
			crc = f.CRC
		}
		if f.Local != "" {
			local = f.Local
		}
		packed32, length32, extra := uint32(len(data)), uint32(length), []byte(nil)
		if f.Zip64 {
			extra = le.AppendUint64(le.AppendUint64([]byte{1, 0, 16, 0}, uint64(length)), uint64(len(data)))
			packed32, length32 = 0xffffffff, 0xffffffff
		}
		common := le.AppendUint16(le.AppendUint16(le.AppendUint16(nil, 45), f.Flags|1<<11), method)
		common = le.AppendUint32(le.AppendUint32(common, 0), crc)
		common = le.AppendUint32(le.AppendUint32(common, packed32), length32)
		if !f.Shared {
			at = b.Len()
			b.WriteString("PK\x03\x04")
			b.Write(common)
			b.Write(le.AppendUint16(le.AppendUint16(nil, uint16(len(local))), uint16(len(extra))))
			b.WriteString(local)
			b.Write(extra)
			b.Write(data)
		}
		directory.WriteString("PK\x01\x02-\x03")
		directory.Write(common)
		directory.Write(le.AppendUint16(le.AppendUint16(nil, uint16(len(f.Name))), uint16(len(extra))))
		directory.Write(make([]byte, 6))
		directory.Write(le.AppendUint32(le.AppendUint32(nil, f.Mode<<16), uint32(at)))
		directory.WriteString(f.Name)
		directory.Write(extra)
	}
	offset, size, count := b.Len()+e.Offset, directory.Len()+e.Size, len(files)+e.Files
	b.Write(directory.Bytes())
	if e.Zip64 {
		at := b.Len()
		b.WriteString("PK\x06\x06")
		b.Write(le.AppendUint64(nil, 44))
		b.Write([]byte{45, 3, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0})
		for _, n := range []int{count + e.Zip64Files, count + e.Zip64Files, size, offset} {
			b.Write(le.AppendUint64(nil, uint64(n)))
		}
		b.WriteString("PK\x06\x07\x00\x00\x00\x00")
		b.Write(le.AppendUint32(le.AppendUint64(nil, uint64(at)), 1))
	}
	b.WriteString("PK\x05\x06")
	b.Write(le.AppendUint16(le.AppendUint16(nil, e.Disk), e.Disk))
	b.Write(le.AppendUint16(le.AppendUint16(nil, uint16(count)), uint16(count)))
	b.Write(le.AppendUint32(le.AppendUint32(nil, uint32(size)), uint32(offset)))
	b.Write(le.AppendUint16(nil, uint16(len(e.Comment))))
	b.WriteString(e.Comment)
	return b.Bytes()
}
