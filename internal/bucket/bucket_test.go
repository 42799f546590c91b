package bucket_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pmh-bridge/bridge/internal/bucket"
	"github.com/pmh-bridge/bridge/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.WithS3(m)) }

// open returns the bucket at an address until the test ends.
func open(t *testing.T, address string) *bucket.Bucket {
	t.Helper()
	a, err := bucket.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bucket.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, b) })
	return b
}

func closed(t *testing.T, b *bucket.Bucket) {
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// fresh returns an empty bucket of the shared server, below a prefix.
func fresh(t *testing.T) *bucket.Bucket {
	t.Helper()
	s := testenv.SharedS3(t)
	s.Setenv(t)
	return open(t, s.Address(s.NewBucket(t), "a%20prefix", "of-ours"))
}

func put(t *testing.T, b *bucket.Bucket, key, body string) {
	t.Helper()
	if err := b.Put(t.Context(), key, strings.NewReader(body), int64(len(body))); err != nil {
		t.Fatal(err)
	}
}

// keys returns the keys that begin with a prefix, with sizes.
func keys(t *testing.T, b *bucket.Bucket, prefix string) (all []string) {
	t.Helper()
	for o, err := range b.Objects(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		if age := time.Since(o.Modified); o.Modified.Location() != time.UTC || age > time.Hour || age < -time.Hour {
			t.Errorf("%s was modified %v", o.Key, o.Modified)
		}
		all = append(all, fmt.Sprint(o.Key, " ", o.Size))
	}
	return all
}

// Objects have the bytes that they were put with, also in parts, are replaced, listed in the
// order of their keys below the prefix alone, and removed.
func TestObjects(t *testing.T) {
	testenv.Heavy(t)
	b := fresh(t)
	if err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 5<<20)
	if _, err := rand.Read(large); err != nil {
		t.Fatal(err)
	}
	bodies := map[string]string{
		"empty": "", "packs/1": "one", "packs/10": "ten", "packs/2": "two", "packs-1": "minus", "packs.1": "dot", "packs0": "nil", "large": string(large),
		"a b+c%20d&e?f#g=h;i,j'k\"l<m>n\\o~p|q[r]{s}^t`u/Bücher/本 😀": "escaped", "a+b": "plus", "a b": "space", "a%2Bb": "percent", "e\u0301": "composed",
	}
	for key, body := range bodies {
		put(t, b, key, "before")
		put(t, b, key, body)
	}
	for key, body := range bodies {
		got, err := b.Get(t.Context(), key, 0, -1)
		if err != nil || string(got) != body {
			t.Errorf("%s has %d bytes, want %d: %v", key, len(got), len(body), err)
		}
		if err := readAll(b.Stream(t.Context(), key, 0))(&got); err != nil || string(got) != body {
			t.Errorf("%s streams %d bytes, want %d: %v", key, len(got), len(body), err)
		}
	}
	for _, c := range []struct{ offset, length int64 }{{0, 1}, {0, 100}, {1, 1}, {12345, 1 << 20}, {5<<20 - 1, 1}, {5<<20 - 7, 7}, {1 << 20, -1}, {5<<20 - 1, -1}} {
		end := c.offset + c.length
		if c.length < 0 {
			end = int64(len(large))
		}
		if got, err := b.Get(t.Context(), "large", c.offset, c.length); err != nil || !bytes.Equal(got, large[c.offset:end]) {
			t.Errorf("%d bytes from %d on: %d bytes, %v", c.length, c.offset, len(got), err)
		}
		var got []byte
		if err := readAll(b.Stream(t.Context(), "large", c.offset))(&got); err != nil || !bytes.Equal(got, large[c.offset:]) {
			t.Errorf("stream from %d on: %d bytes, %v", c.offset, len(got), err)
		}
	}
	if got, err := b.Get(t.Context(), "missing", 0, 0); err != nil || got == nil || len(got) != 0 {
		t.Errorf("no bytes: %v, %v", got, err)
	}
	var want []string
	for _, key := range slices.Sorted(maps.Keys(bodies)) {
		want = append(want, fmt.Sprint(key, " ", len(bodies[key])))
	}
	if got := keys(t, b, ""); !slices.Equal(got, want) {
		t.Errorf("listed %q\nwant %q", got, want)
	}
	for prefix, want := range map[string]string{"packs/": "packs/1 3,packs/10 3,packs/2 3", "packs/1": "packs/1 3,packs/10 3", "a+": "a+b 4", "a%": "a%2Bb 7", "none": "", "pre": ""} {
		if got := strings.Join(keys(t, b, prefix), ","); got != want {
			t.Errorf("listed below %q: %s, want %s", prefix, got, want)
		}
	}
	for o, err := range b.Objects(t.Context(), "") {
		if err != nil || o.Key != "a b" {
			t.Errorf("first: %s, %v", o.Key, err)
		}
		break // a caller may leave
	}
	if err := b.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Remove(t.Context(), append(slices.Collect(maps.Keys(bodies)), "missing", "packs/1", "packs/none/at/all")...); err != nil {
		t.Error(err)
	}
	if left := keys(t, b, ""); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// readAll returns a function that reads and closes what Stream returns.
func readAll(body io.ReadCloser, err error) func(*[]byte) error {
	return func(all *[]byte) error {
		if err != nil {
			return err
		}
		*all, err = io.ReadAll(body)
		return errors.Join(err, body.Close())
	}
}

// A bucket is read with its prefix alone, and a neighbour whose name begins like the prefix
// is none of it.
func TestPrefix(t *testing.T) {
	testenv.Heavy(t)
	s := testenv.SharedS3(t)
	s.Setenv(t)
	name := s.NewBucket(t)
	whole, ours, neighbour := open(t, s.Address(name)), open(t, s.Address(name, "ours")), open(t, s.Address(name, "ours2"))
	put(t, ours, "k", "1")
	put(t, neighbour, "k", "22")
	if got := strings.Join(keys(t, ours, ""), ","); got != "k 1" {
		t.Errorf("listed %s", got)
	}
	if got := strings.Join(keys(t, whole, ""), ","); got != "ours/k 1,ours2/k 2" {
		t.Errorf("the whole bucket: %s", got)
	}
}

// More objects than one answer names are listed, in order.
func TestManyObjects(t *testing.T) {
	testenv.Heavy(t)
	b := fresh(t)
	var want []string
	for i := range 2100 {
		key := fmt.Sprintf("k/%d", i)
		put(t, b, key, "x")
		want = append(want, key+" 1")
	}
	slices.Sort(want)
	if got := keys(t, b, "k/"); !slices.Equal(got, want) {
		t.Errorf("listed %d, want %d", len(got), len(want))
	}
}

// pattern is a body of any size that is nowhere in memory: of every eight bytes the place.
// With a failing part, it cannot be read from there on.
type pattern struct{ fails int64 }

var errBody = errors.New("the disk is gone")

func (p pattern) ReadAt(b []byte, offset int64) (int, error) {
	if p.fails > 0 && offset+int64(len(b)) > p.fails {
		return 0, errBody
	}
	for i := range b {
		at := offset + int64(i)
		b[i] = byte(at / 8 >> (at % 8 * 8))
	}
	return len(b), nil
}

// A body that is larger than one request goes in parts, and not through memory.
func TestParts(t *testing.T) {
	testenv.Heavy(t)
	b := fresh(t)
	for _, size := range []int64{bucket.PartSize, bucket.PartSize + 1, 2*bucket.PartSize + 12345} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := b.Put(t.Context(), "k", pattern{}, size); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 4<<20 {
			t.Errorf("%d bytes took %d of memory", size, used)
		}
		body, err := b.Stream(t.Context(), "k", 0)
		if err != nil {
			t.Fatal(err)
		}
		got, want := sha256.New(), sha256.New()
		n, err := io.Copy(got, body)
		if err := errors.Join(err, body.Close()); err != nil || n != size {
			t.Errorf("%d bytes, want %d: %v", n, size, err)
		}
		if _, err := io.Copy(want, io.NewSectionReader(pattern{}, 0, size)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
			t.Errorf("%d bytes: others", size)
		}
		if got, err := b.Get(t.Context(), "k", bucket.PartSize-8, 8); err != nil || !bytes.Equal(got, []byte{0xff, 0xff, 0x3f, 0, 0, 0, 0, 0}) {
			t.Errorf("at the end of the first part: %x, %v", got, err)
		}
	}
}

// A body that fails, or that is shorter than its size, leaves what was there, and no parts.
func TestBodyFails(t *testing.T) {
	testenv.Heavy(t)
	s := testenv.SharedS3(t)
	s.Setenv(t)
	name := s.NewBucket(t)
	a, err := bucket.Parse(s.Address(name))
	if err != nil {
		t.Fatal(err)
	}
	b, err := bucket.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	put(t, b, "k", "before")
	for _, c := range []struct {
		body io.ReaderAt
		size int64
		want error
	}{
		{pattern{fails: 1}, 10, errBody},
		{pattern{fails: bucket.PartSize + 1}, 2 * bucket.PartSize, errBody},
		{strings.NewReader("short"), 6, io.ErrUnexpectedEOF},
		{io.NewSectionReader(pattern{}, 0, bucket.PartSize+5), bucket.PartSize + 6, io.ErrUnexpectedEOF},
	} {
		if err := b.Put(t.Context(), "k", c.body, c.size); !errors.Is(err, c.want) || errors.Is(err, bucket.ErrAway) || errors.Is(err, bucket.ErrRefused) {
			t.Errorf("%d bytes: %v, want %v", c.size, err, c.want)
		}
		if got, err := b.Get(t.Context(), "k", 0, -1); err != nil || string(got) != "before" {
			t.Errorf("%d bytes: %.20q, %v", c.size, got, err)
		}
	}
	closed(t, b) // waits for the parts to go
	if err := filepath.WalkDir(filepath.Join(s.Folder(), name), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "k" {
			t.Errorf("left: %s", path)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// What cannot be a key, or is not in an object, is an error that is about nothing else.
func TestWrongCalls(t *testing.T) {
	testenv.Heavy(t)
	b := fresh(t)
	put(t, b, "k", "0123456789")
	for _, key := range []string{"", strings.Repeat("k", 1024), "\xff"} {
		calls(t, b, key, func(name string, err error) {
			if err == nil || !strings.Contains(err.Error(), "cannot be a key") {
				t.Errorf("%s %.10q: %v", name, key, err)
			}
		})
	}
	for _, c := range []struct {
		offset, length int64
		want           error
	}{{8, 3, io.ErrUnexpectedEOF}, {10, 1, io.ErrUnexpectedEOF}, {10, -1, io.ErrUnexpectedEOF}, {1000, 7, io.ErrUnexpectedEOF}, {0, 1 << 50, io.ErrUnexpectedEOF}, {-1, 5, nil}} {
		got, err := b.Get(t.Context(), "k", c.offset, c.length)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || errors.Is(err, bucket.ErrAway) || errors.Is(err, bucket.ErrRefused) {
			t.Errorf("%d bytes from %d on: %q, %v", c.length, c.offset, got, err)
		}
	}
}

// calls makes every call for a key but Objects, and tells how it ended.
func calls(t *testing.T, b *bucket.Bucket, key string, ended func(name string, err error)) {
	t.Helper()
	ctx := t.Context()
	ended("Put", b.Put(ctx, key, strings.NewReader("x"), 1))
	ended("Put in parts", b.Put(ctx, key, pattern{}, bucket.PartSize+1))
	_, err := b.Get(ctx, key, 0, 1)
	ended("Get", err)
	body, err := b.Stream(ctx, key, 0)
	if err == nil {
		body.Close()
	}
	ended("Stream", err)
	ended("Remove", b.Remove(ctx, key))
}

// PutNew never replaces an object.
func TestPutNew(t *testing.T) {
	b := fresh(t)
	for n, body := range []string{"first", "second"} {
		err := b.PutNew(t.Context(), "k", strings.NewReader(body), int64(len(body)))
		if n == 0 && err != nil || n > 0 && !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if got, err := b.Get(t.Context(), "k", 0, -1); err != nil || string(got) != "first" {
		t.Errorf("%q, %v", got, err)
	}
}

// A missing object is fs.ErrNotExist, which names the address and the key.
func TestMissing(t *testing.T) {
	testenv.Heavy(t)
	b := fresh(t)
	put(t, b, "folder/k", "x")
	for _, key := range []string{"missing", "folder/missing", "folder", "folder/k/below"} {
		_, get := b.Get(t.Context(), key, 0, -1)
		_, part := b.Get(t.Context(), key, 2, 7)
		_, stream := b.Stream(t.Context(), key, 0)
		for name, err := range map[string]error{"Get": get, "Get of a part": part, "Stream": stream} {
			if !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), b.String()+": cannot read \""+key+"\": ") {
				t.Errorf("%s %s: %v", name, key, err)
			}
		}
	}
}

// Whoever is not let in is told why, where and what to do, and never a secret.
func TestRefused(t *testing.T) {
	testenv.Heavy(t)
	s := testenv.SharedS3(t)
	for name, c := range map[string]struct {
		bucket, query string
		key, secret   string
		want          string
	}{
		"no bucket":      {"no-such-bucket", "", s.AccessKey, s.SecretKey, "there is no such bucket; create it, or correct its name (NoSuchBucket"},
		"wrong secret":   {s.NewBucket(t), "", s.AccessKey, "rosebud", "the signature is wrong; correct AWS_SECRET_ACCESS_KEY"},
		"unknown key":    {s.NewBucket(t), "", "someone", "rosebud", "it does not know the access key; correct AWS_ACCESS_KEY_ID"},
		"no credentials": {s.NewBucket(t), "", "", "", "there are no credentials; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or from the shared credentials file (AWS_PROFILE) (environment: has none; file: "},
		"half of them":   {s.NewBucket(t), "", s.AccessKey, "", "(environment: has only one of access key and secret key; file: "},
		"wrong region":   {s.NewBucket(t), "&region=eu-central-1", s.AccessKey, s.SecretKey, "the region or the endpoint is wrong; write region=us-east-1"},
	} {
		s.Setenv(t)
		t.Setenv("AWS_ACCESS_KEY_ID", c.key)
		t.Setenv("AWS_SECRET_ACCESS_KEY", c.secret)
		t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
		t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
		b := open(t, s.Address(c.bucket, "p")+c.query)
		ended := func(call string, err error) {
			if !errors.Is(err, bucket.ErrRefused) || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), b.String()+": cannot ") ||
				strings.Contains(err.Error(), "rosebud") || strings.Contains(err.Error(), s.SecretKey) {
				t.Errorf("%s, %s: %v\nwant %s", name, call, err, c.want)
			}
		}
		calls(t, b, "k", ended)
		ended("Check", b.Check(t.Context()))
		for o, err := range b.Objects(t.Context(), "k") {
			ended("Objects "+o.Key, err)
		}
	}
}

// Credentials come from the shared credentials file when the environment has none.
func TestCredentialsFile(t *testing.T) {
	testenv.Heavy(t)
	s := testenv.SharedS3(t)
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, fmt.Appendf(nil, "[default]\naws_access_key_id = x\naws_secret_access_key = y\n[library]\naws_access_key_id = %s\naws_secret_access_key = %s\n", s.AccessKey, s.SecretKey), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "", "AWS_SHARED_CREDENTIALS_FILE": file, "AWS_CONFIG_FILE": file + ".none", "AWS_PROFILE": "library"} {
		t.Setenv(name, value)
	}
	name := s.NewBucket(t)
	if err := open(t, s.Address(name)).Check(t.Context()); err != nil {
		t.Error(err)
	}
	t.Setenv("AWS_PROFILE", "")
	if err := open(t, s.Address(name)).Check(t.Context()); !errors.Is(err, bucket.ErrRefused) {
		t.Errorf("with the default profile: %v", err)
	}
}

// A server that is stopped is away within seconds, for every call, and back when it has
// started.
func TestRestart(t *testing.T) {
	testenv.Heavy(t)
	s := testenv.S3(t)
	s.Setenv(t)
	b := open(t, s.Address(s.NewBucket(t), "p"))
	put(t, b, "k", "0123456789")
	body, err := b.Stream(t.Context(), "k", 0)
	if err != nil {
		t.Fatal(err)
	}
	body.Close()
	s.Stop(t)
	away := func(call string, err error) {
		if !errors.Is(err, bucket.ErrAway) || !strings.HasPrefix(err.Error(), b.String()+": cannot ") {
			t.Errorf("%s: %v", call, err)
		}
	}
	began := time.Now()
	calls(t, b, "k", away)
	away("Check", b.Check(t.Context()))
	for o, err := range b.Objects(t.Context(), "") {
		away("Objects "+o.Key, err)
	}
	if took := time.Since(began); took > 7*15*time.Second {
		t.Errorf("seven calls took %v", took)
	}
	s.Start(t)
	if got, err := b.Get(t.Context(), "k", 3, 4); err != nil || string(got) != "3456" {
		t.Errorf("%q, %v", got, err)
	}
	if err := b.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// Check leaves nothing, and removes what a Check that was interrupted has left a day ago.
func TestCheck(t *testing.T) {
	s := testenv.SharedS3(t)
	s.Setenv(t)
	name := s.NewBucket(t)
	b := open(t, s.Address(name))
	put(t, b, "bridge-check-old", "x")
	put(t, b, "bridge-check-new", "x")
	put(t, b, "ours", "x")
	old := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(filepath.Join(s.Folder(), name, "bridge-check-old"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(t.Context()); err != nil {
		t.Error(err)
	}
	var left []string
	for o, err := range b.Objects(context.Background(), "") {
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, o.Key)
	}
	if !slices.Equal(left, []string{"bridge-check-new", "ours"}) {
		t.Errorf("left: %q", left)
	}
}
