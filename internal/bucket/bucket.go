// Package bucket keeps objects in a bucket of an S3 server, below a prefix.
//
// An error is one of four, which errors.Is tells apart: ErrAway, ErrRefused, fs.ErrNotExist
// for an object, and the error of the caller's context. Any other is about what the caller
// has handed in, or about an object that is shorter than the caller says.
//
// No call waits without bound for a server that has gone silent: a connection that moves no
// byte for half a minute, while an answer is due, is given up.
package bucket

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

const (
	dialPatience = 10 * time.Second
	// patience is how long a connection may move no byte while it is in use.
	patience = 30 * time.Second
	// idle is shorter than patience, so that a connection does not fail when it is used again.
	idle = patience * 2 / 3
	// tries is how often a request is made, with less than a second between two.
	tries = 3
	// abortPatience is how long the parts of an upload that has failed are being removed.
	abortPatience = 10 * time.Second

	// partSize is the size of the largest object that is one request, and of the parts of
	// larger ones, unless these would be more than most.
	partSize  = 32 << 20
	mostParts = 10_000

	longestKey = 1024
)

// checkName begins the keys of the objects that Check writes, and may leave.
const checkName = "bridge-check-"

// Bucket is a bucket of an S3 server below a prefix. Keys are without the prefix. Its methods
// may be called from several goroutines at once.
type Bucket struct {
	address   Address
	front     string // of every key in the bucket
	s3        *minio.Core
	transport *http.Transport
	aborts    sync.WaitGroup
}

// Object is what a list says of an object.
type Object struct {
	Key      string
	Size     int64
	Modified time.Time // in UTC
}

// Open returns the bucket at an address. It uses no network: Check does. Credentials are
// those of the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN),
// else those of the shared credentials file (AWS_PROFILE), else, at AWS, those of the
// machine's role. A proxy of the environment is not used.
func Open(a Address) (*Bucket, error) { return open(a, patience) }

func open(a Address, patience time.Duration) (*Bucket, error) {
	a, err := Parse(a.String())
	if err != nil {
		return nil, fmt.Errorf("the address of the bucket %w", err)
	}
	endpoint := cmp.Or(a.Endpoint, "https://s3.amazonaws.com")
	server, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a, err)
	}
	aws := s3utils.IsAmazonEndpoint(*server)
	region := a.Region
	if region == "" && !aws {
		region = "us-east-1" // else the library asks for it, which not all servers answer
	}
	b := &Bucket{address: a}
	if a.Prefix != "" {
		b.front = a.Prefix + "/"
	}
	dialer := &net.Dialer{Timeout: dialPatience}
	b.transport = &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &impatientConn{c, patience}, nil
		},
		TLSHandshakeTimeout:   dialPatience,
		ResponseHeaderTimeout: patience,
		IdleConnTimeout:       idle,
		MaxIdleConnsPerHost:   16,
		DisableCompression:    true, // an object is stored as it is
	}
	// By default only AWS, and few who require or accept it, have the bucket in the host name.
	b.s3, err = minio.NewCore(server.Host, &minio.Options{
		Creds: newCredentials(aws), Secure: server.Scheme == "https", Transport: b.transport, Region: region, MaxRetries: tries,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a, err)
	}
	return b, nil
}

// impatientConn is a connection that fails when it moves no byte for some time while it is
// written to or read from. Whoever writes waits for an answer, so that a write also begins
// the time of a read that waits already.
type impatientConn struct {
	net.Conn
	patience time.Duration
}

func (c *impatientConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *impatientConn) Write(p []byte) (int, error) {
	if err := c.SetDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// String returns the address, which has no secret.
func (b *Bucket) String() string { return b.address.String() }

// Close waits until the parts of failed uploads are removed, ten seconds at most, and closes
// the connections that no call uses.
func (b *Bucket) Close() error {
	b.aborts.Wait()
	b.transport.CloseIdleConnections()
	return nil
}

// name returns the key of an object in the bucket.
func (b *Bucket) name(key string) (string, error) {
	name := b.front + key
	if key == "" || len(name) > longestKey || !utf8.ValidString(name) {
		return "", fmt.Errorf("%s: %.50q cannot be a key: with the prefix it is 1 to %d bytes of UTF-8", b.address, key, longestKey)
	}
	return name, nil
}

// Put writes an object, or replaces it. When it returns nil the object is durable, as far as
// the server promises that. The server refuses bytes that were damaged on the way: each
// request says the SHA-256 of its own. For that the body is read twice.
func (b *Bucket) Put(ctx context.Context, key string, body io.ReaderAt, size int64) error {
	name, err := b.name(key)
	if err != nil {
		return err
	}
	if size > partSize {
		return b.putParts(ctx, key, name, body, size)
	}
	return b.putWhole(ctx, key, name, body, size, minio.PutObjectOptions{})
}

// PutNew is Put of an object of at most 32 MiB that must not be there yet: else the error is
// fs.ErrExist. A server that knows no conditions replaces it.
func (b *Bucket) PutNew(ctx context.Context, key string, body io.ReaderAt, size int64) error {
	name, err := b.name(key)
	if err != nil {
		return err
	}
	var o minio.PutObjectOptions
	o.SetMatchETagExcept("*")
	return b.putWhole(ctx, key, name, body, size, o)
}

// putWhole writes an object with one request.
func (b *Bucket) putWhole(ctx context.Context, key, name string, body io.ReaderAt, size int64, o minio.PutObjectOptions) error {
	part, sum, err := section(body, 0, size)
	if err != nil {
		return fmt.Errorf("%s: cannot write %q: %w", b.address, key, err)
	}
	o.DisableContentSha256 = true // no sum of the library's own: it is in the signature
	if _, err := b.s3.PutObject(ctx, b.address.Bucket, name, part, size, "", sum, o); err != nil {
		return b.fail(ctx, writing, key, err)
	}
	return nil
}

// putParts writes an object in several requests. Until the last one has succeeded nothing is
// there under the key, or what was there before.
func (b *Bucket) putParts(ctx context.Context, key, name string, body io.ReaderAt, size int64) (err error) {
	bucket := b.address.Bucket
	upload, err := b.s3.NewMultipartUpload(ctx, bucket, name, minio.PutObjectOptions{})
	if err != nil {
		return b.fail(ctx, writing, key, err)
	}
	defer func() {
		if err == nil {
			return
		}
		ctx := context.WithoutCancel(ctx)
		b.aborts.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, abortPatience)
			defer cancel()
			// What stays is removed by the bucket's rule for unfinished uploads.
			_ = b.s3.AbortMultipartUpload(ctx, bucket, name, upload)
		})
	}()
	step := max(partSize, (size+mostParts-1)/mostParts)
	var parts []minio.CompletePart
	for offset := int64(0); offset < size; offset += step {
		length := min(step, size-offset)
		part, sum, err := section(body, offset, length)
		if err != nil {
			return fmt.Errorf("%s: cannot write %q: %w", b.address, key, err)
		}
		number := len(parts) + 1
		written, err := b.s3.PutObjectPart(ctx, bucket, name, upload, number, part, length, minio.PutObjectPartOptions{Sha256Hex: sum, DisableContentSha256: true})
		if err != nil {
			return b.fail(ctx, writing, key, err)
		}
		parts = append(parts, minio.CompletePart{PartNumber: number, ETag: written.ETag})
	}
	if _, err := b.s3.CompleteMultipartUpload(ctx, bucket, name, upload, parts, minio.PutObjectOptions{}); err != nil {
		return b.fail(ctx, writing, key, err)
	}
	return nil
}

// section returns a part of a body, and its SHA-256.
func section(body io.ReaderAt, offset, length int64) (part *io.SectionReader, sum string, err error) {
	part = io.NewSectionReader(body, offset, length)
	hash := sha256.New()
	switch n, err := io.Copy(hash, part); {
	case err != nil:
		return nil, "", fmt.Errorf("its body: %w", err)
	case n != length:
		return nil, "", fmt.Errorf("its body ends after %d bytes: %w", offset+n, io.ErrUnexpectedEOF)
	}
	if _, err := part.Seek(0, io.SeekStart); err != nil {
		return nil, "", err
	}
	return part, hex.EncodeToString(hash.Sum(nil)), nil
}

// Get returns length bytes of an object from an offset on, and never fewer without an error;
// a negative length means all from there on. For no bytes it does not ask the server.
func (b *Bucket) Get(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if length == 0 {
		return []byte{}, nil
	}
	body, err := b.stream(ctx, key, offset, length)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if length < 0 {
		return io.ReadAll(body)
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(body, data); err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, b.fail(ctx, reading, key, io.ErrUnexpectedEOF)
	} else if err != nil {
		return nil, err
	}
	return data, nil
}

// Stream returns an object from an offset on. The errors of its Read are like those of the
// Bucket's methods. An offset other than 0 must be in the object.
func (b *Bucket) Stream(ctx context.Context, key string, offset int64) (io.ReadCloser, error) {
	return b.stream(ctx, key, offset, -1)
}

// stream requests an object from an offset on: length bytes, or all if that is negative.
func (b *Bucket) stream(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	name, err := b.name(key)
	if err != nil {
		return nil, err
	}
	short := func() error {
		return fmt.Errorf("%s: %q does not have %d bytes from byte %d on: %w", b.address, key, max(length, 1), offset, io.ErrUnexpectedEOF)
	}
	var options minio.GetObjectOptions
	ranged := true
	switch {
	case offset < 0:
		return nil, fmt.Errorf("%s: %q has no byte %d", b.address, key, offset)
	case length >= 0:
		err = options.SetRange(offset, offset+length-1)
	case offset > 0:
		err = options.SetRange(offset, 0)
	default:
		ranged = false
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %q: %w", b.address, key, err)
	}
	body, object, header, err := b.s3.GetObject(ctx, b.address.Bucket, name, options)
	if minio.ToErrorResponse(err).Code == "InvalidRange" {
		return nil, short()
	}
	if err != nil {
		return nil, b.fail(ctx, reading, key, err)
	}
	if ranged {
		err = b.partial(ctx, key, offset, length, object.Size, header.Get("Content-Range"), short)
	}
	if err != nil {
		body.Close()
		return nil, err
	}
	return &reader{body, ctx, b, key}, nil
}

// partial checks what a server says of the part of an object that it sends, which has size bytes,
// -1 if it does not say. Only a length of the whole object shows that the object is short.
func (b *Bucket) partial(ctx context.Context, key string, offset, length, size int64, said string, short func() error) error {
	var first, last, whole int64
	n, _ := fmt.Sscanf(said, "bytes %d-%d/%d", &first, &last, &whole) // the length of the whole may be *
	want := last
	switch {
	case n < 2 || first != offset:
		return fmt.Errorf("%s: cannot read a part of %q: %w: it sends another part, or the whole; use a server that answers requests with Range", b.address, key, ErrRefused)
	case length >= 0:
		want = offset + length - 1
	case n == 3:
		want = whole - 1
	}
	switch {
	case n == 3 && whole <= want, n == 2 && last < want:
		return short()
	case last < want || size >= 0 && size <= want-offset:
		return b.fail(ctx, reading, key, fmt.Errorf("it sends less than was asked for (%.50q)", said))
	}
	return nil
}

// reader is the body of an object.
type reader struct {
	io.ReadCloser
	ctx    context.Context
	bucket *Bucket
	key    string
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = r.bucket.fail(r.ctx, reading, r.key, err)
	}
	return n, err
}

// Objects returns the objects whose keys begin with a prefix, in the order of their keys. An
// error ends it.
func (b *Bucket) Objects(ctx context.Context, keyPrefix string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		last, owner := "", false
		options := minio.ListObjectsOptions{Prefix: b.front + keyPrefix, Recursive: true, FetchOwner: &owner}
		for o := range b.s3.ListObjectsIter(ctx, b.address.Bucket, options) {
			if o.Err != nil {
				yield(Object{}, b.fail(ctx, listing, keyPrefix, o.Err))
				return
			}
			key, ok := strings.CutPrefix(o.Key, b.front)
			if !ok || key <= last && last != "" {
				yield(Object{}, fmt.Errorf("%s: cannot list %q: %w: it names %q after %q; use a server that lists keys in their order", b.address, keyPrefix, ErrRefused, o.Key, b.front+last))
				return
			}
			if last = key; key == "" {
				continue // the prefix itself, which some programs make as a folder
			}
			if !yield(Object{Key: key, Size: o.Size, Modified: o.LastModified.UTC()}, nil) {
				return
			}
		}
		if ctx.Err() != nil { // at which the library ends without a word
			yield(Object{}, b.fail(ctx, listing, keyPrefix, ctx.Err()))
		}
	}
}

// Remove removes objects. One that is not there is no error. The first error ends it.
func (b *Bucket) Remove(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		name, err := b.name(key)
		if err != nil {
			return err
		}
		if err := b.s3.RemoveObject(ctx, b.address.Bucket, name, minio.RemoveObjectOptions{}); err != nil {
			if err = b.fail(ctx, removing, key, err); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// Check lists, writes, reads and removes a small object, whose key begins with bridge-check-,
// and returns what this process may not do or the server does not do. It removes objects
// that a Check which was interrupted has left a day ago.
func (b *Bucket) Check(ctx context.Context) error {
	var old []string
	for o, err := range b.Objects(ctx, checkName) {
		if err != nil {
			return err
		}
		if time.Since(o.Modified) > 24*time.Hour {
			old = append(old, o.Key)
		}
	}
	key := checkName + rand.Text()
	if err := b.Put(ctx, key, strings.NewReader(key), int64(len(key))); err != nil {
		return err
	}
	if err := errors.Join(b.checkRead(ctx, key), b.Remove(ctx, append(old, key)...)); err != nil {
		return err
	}
	switch _, err := b.Get(ctx, key, 0, -1); {
	case err == nil:
		return b.unfit(key, "is still there after it was removed")
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// checkRead reports whether an object that was just written is there, and has its key as its
// body.
func (b *Bucket) checkRead(ctx context.Context, key string) error {
	const from, to = 2, 7
	whole, err := b.Get(ctx, key, 0, -1)
	if err != nil {
		return err
	}
	part, err := b.Get(ctx, key, from, to-from)
	if err != nil {
		return err
	}
	if string(whole) != key || !bytes.Equal(part, whole[from:to]) {
		return b.unfit(key, "does not have the bytes that were written")
	}
	listed := 0
	for o, err := range b.Objects(ctx, key) {
		if err != nil {
			return err
		}
		if listed++; o.Key != key || o.Size != int64(len(key)) {
			return b.unfit(key, "is listed with another key or size")
		}
	}
	if listed != 1 {
		return b.unfit(key, "is not listed after it was written")
	}
	return nil
}

func (b *Bucket) unfit(key, why string) error {
	return fmt.Errorf("%s: %w: %q %s; use a server that is consistent, and a prefix that no other program uses", b.address, ErrRefused, key, why)
}
