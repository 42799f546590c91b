package export

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/event"
)

// stateVersion changes when files of bridge's own are written in another way. A state of
// another version is not trusted.
const stateVersion = 1

// state is what an export has written: export.json. It is replaced when an export has
// ended, and not before.
type state struct {
	Version int                  `json:"version"`
	BaseURL string               `json:"base_url"`
	Ended   time.Time            `json:"ended"`
	Sets    map[string]*setState `json:"sets"`
	// Documents has all documents and pages by path.
	Documents map[string]*document `json:"documents"`
}

// setState is the state of a set that the tree shows.
type setState struct {
	Feed     string       `json:"feed"` // the id that changes when the log starts anew
	Created  event.Micros `json:"created"`
	Content  string       `json:"content"`
	Seq      event.Seq    `json:"seq"`
	Observed event.Micros `json:"observed"` // of the event Seq
	Records  int64        `json:"records"`
	Files    int64        `json:"files"` // of records
	List     sum          `json:"list"`  // of them, in .bridge/records
	// Whole: every record that is alive at Seq has its files. Else all of them are
	// compared in the next export.
	Whole bool `json:"whole"`
	// Types counts the files of records by extension, "" for none, and media type.
	Types map[string]map[string]int64 `json:"types,omitempty"`
}

// document is a document or page in the tree.
type document struct {
	// Tag is the entity tag of what was rendered, "" for one that has none.
	Tag    string `json:"tag,omitempty"`
	Type   string `json:"type"`
	Closed bool   `json:"closed,omitempty"`
	// Stale: no document names it any more; --prune removes it.
	Stale bool `json:"stale,omitempty"`
	sum
	Gzip *sum `json:"gzip,omitempty"` // of the compressed file beside it
}

func newState(base string) *state {
	return &state{Version: stateVersion, BaseURL: base, Sets: map[string]*setState{}, Documents: map[string]*document{}}
}

// load reads the state of the last export that ended, an empty one where there is none.
func (t *tree) load(base string) (*state, error) {
	data, err := t.root.ReadFile(stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return newState(base), nil
	}
	if err != nil {
		return nil, err
	}
	st := newState(base)
	// With a damaged state everything is compared.
	if json.Unmarshal(data, st) != nil || st.Version != stateVersion || st.Sets == nil || st.Documents == nil {
		return newState(base), nil
	}
	for name, d := range st.Documents {
		if d == nil || !fs.ValidPath(name) || strings.HasPrefix(name, own) {
			return newState(base), nil
		}
	}
	return st, nil
}

func (t *tree) save(name string, st *state) error {
	data, err := json.MarshalIndent(st, "", " ")
	if err != nil {
		return err
	}
	return t.keep(name, append(data, '\n'))
}

// isOf reports whether the state of a set was exported from this log, so that the events
// after it are all that has changed.
func (s *setState) isOf(ctx context.Context, m *moment, set *event.Set) (bool, error) {
	if s.Feed != set.Feed || s.Created != set.Created || s.Content != set.Content.String() || s.Seq > set.Last {
		return false, nil
	}
	if s.Seq == set.Last {
		return s.Observed == set.LastObserved, nil
	}
	if s.Seq == 0 {
		return true, nil
	}
	for e, err := range m.Events(ctx, set.Name, event.Range{After: s.Seq - 1, Upto: s.Seq}) {
		if err != nil {
			return false, err
		}
		return e.Observed == s.Observed, nil
	}
	return false, nil
}

// writeSums writes the hashes of all documents in the form of sha256sum, so that
// "sha256sum -c" finds what is damaged or missing.
func (t *tree) writeSums(st *state) error {
	d, err := t.stage(func(w io.Writer) error {
		b := bufio.NewWriter(w)
		for _, name := range slices.Sorted(maps.Keys(st.Documents)) {
			doc := st.Documents[name]
			fmt.Fprintf(b, "%s  %s\n", doc.SHA256, name)
			if doc.Gzip != nil {
				fmt.Fprintf(b, "%s  %s.gz\n", doc.Gzip.SHA256, name)
			}
		}
		return b.Flush()
	})
	if err != nil {
		return err
	}
	return t.move(d, own+"/documents.sha256")
}

// readMarker returns the sets of an export that has not ended, nil when there is none: the tree
// may have their former state, or the one that is returned.
func (t *tree) readMarker() (*state, error) {
	data, err := t.root.ReadFile(markerFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	st := &state{}
	if json.Unmarshal(data, st) != nil {
		st.Sets = nil // then nothing of the former state is trusted
	}
	return st, nil
}
