package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/status"
)

// Each harvest under way has a file in the data folder, which bridge status shows. A file
// that exists when the folder is opened for writing belongs to a harvest that ended with
// its process. The files are not synced: they may be lost when the system crashes.

const (
	underwayFolder = "underway"
	// Such a file is rewritten every underwayEvery. One that is older than underwayStale
	// belongs to a process that has ended.
	underwayEvery = 2 * time.Second
	underwayStale = 5 * underwayEvery
)

// underway maintains the files of one process. The zero value, without a folder, writes
// none.
type underway struct {
	folder string
	now    func() time.Time

	mu   sync.Mutex
	jobs map[event.SourceID]*harvestJob
	stop chan struct{} // closed when the last job has ended
}

// harvestJob is one harvest under way.
type harvestJob struct {
	of *underway
	id event.SourceID

	mu sync.Mutex
	status.Underway
}

// openUnderway counts each harvest that ended with the last process as failed, so that
// a Source that crashes the process is harvested with growing delays.
func (b *Bridge) openUnderway(ctx context.Context) error {
	if b.opt.DryRun {
		return nil
	}
	folder := filepath.Join(b.Config().Data, underwayFolder)
	files, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range files {
		path := filepath.Join(folder, f.Name())
		id, ok := underwayID(f.Name())
		if src := b.sourceByID(id); ok && src != nil {
			if err := b.countEnded(ctx, src, path); err != nil {
				return err
			}
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	b.underway.folder, b.underway.now = folder, b.now
	return nil
}

// countEnded counts the harvest of a Source that a file is about as failed, unless a later one
// has ended, at this node or another.
func (b *Bridge) countEnded(ctx context.Context, src *Source, path string) error {
	was, err := readUnderway(path)
	if err != nil {
		was.Started = b.now() // it had only just begun
	}
	stored, err := b.Log.Schedule(ctx, src.ID)
	if err != nil {
		return err
	}
	var last harvest.Report
	if stored.Report != nil && json.Unmarshal(stored.Report, &last) == nil && last.Started.After(was.Started) {
		return nil
	}
	report := harvest.Report{Started: was.Started, Ended: b.now().UTC(), Documents: was.Documents, Entries: was.Entries,
		Created: was.Created, Updated: was.Updated, Deleted: was.Deleted,
		Error: fmt.Sprintf("bridge ended during this harvest, which was %s", cmp.Or(was.Doing, "beginning")), ErrorKind: harvest.KindInterrupted}
	b.opt.Logger.Warn("bridge ended during a harvest, which counts as a failed one", "set", src.Set, "source", src.URL)
	return b.saveSchedule(ctx, src, src.Every, &report, errEnded)
}

// errEnded means that the process ended during a harvest.
var errEnded = errors.New("bridge ended during the harvest")

func underwayID(name string) (event.SourceID, bool) {
	n, err := strconv.ParseInt(strings.TrimSuffix(name, ".json"), 10, 64)
	return event.SourceID(n), err == nil && strings.HasSuffix(name, ".json")
}

// underwayFile is what a file has: all of a status.Underway, also what the status does not show,
// for the row of the harvest in the history of the Source if the process ends meanwhile.
type underwayFile status.Underway

func readUnderway(path string) (u status.Underway, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, (*underwayFile)(&u))
	}
	return u, err
}

// underwayOf returns the harvests under way in any process.
func (b *Bridge) underwayOf() map[event.SourceID]*status.Underway {
	out := map[event.SourceID]*status.Underway{}
	folder := filepath.Join(b.Config().Data, underwayFolder)
	files, err := os.ReadDir(folder)
	if err != nil {
		return out // the folder does not exist
	}
	for _, f := range files {
		info, err := f.Info()
		id, ok := underwayID(f.Name())
		if err != nil || !ok || time.Since(info.ModTime()) > underwayStale {
			continue
		}
		if u, err := readUnderway(filepath.Join(folder, f.Name())); err == nil { // on an error it is being written
			out[id] = &u
		}
	}
	return out
}

func (u *underway) begin(s *Source) *harvestJob {
	j := &harvestJob{of: u, id: s.ID}
	if u.folder == "" {
		return j
	}
	j.Started = u.now().UTC()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.jobs == nil {
		u.jobs = map[event.SourceID]*harvestJob{}
	}
	if len(u.jobs) == 0 {
		u.stop = make(chan struct{})
		go u.refresh(u.stop)
	}
	u.jobs[s.ID] = j
	j.write()
	return j
}

// has reports whether a harvest of a Source is under way in this process.
func (u *underway) has(id event.SourceID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.jobs[id] != nil
}

// update stores the progress of the harvest.
func (j *harvestJob) update(p harvest.Progress) {
	j.mu.Lock()
	j.Progress = p
	j.mu.Unlock()
}

func (j *harvestJob) end() {
	u := j.of
	if u.folder == "" {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.jobs[j.id] != j {
		return // close was called before
	}
	delete(u.jobs, j.id)
	if len(u.jobs) == 0 {
		close(u.stop)
	}
	_ = os.Remove(j.path()) // a remaining file costs a pause after the next start
}

// refresh rewrites the files every underwayEvery.
func (u *underway) refresh(stop chan struct{}) {
	tick := time.NewTicker(underwayEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		u.mu.Lock()
		for _, j := range u.jobs {
			j.write()
		}
		u.mu.Unlock()
	}
}

// close removes the files of all harvests.
func (u *underway) close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.jobs) > 0 {
		close(u.stop)
	}
	var errs []error
	for _, j := range u.jobs {
		errs = append(errs, os.Remove(j.path()))
	}
	clear(u.jobs)
	return errors.Join(errs...)
}

func (j *harvestJob) path() string {
	return filepath.Join(j.of.folder, strconv.FormatInt(int64(j.id), 10)+".json")
}

// write writes the file. If that fails, only bridge status lacks the harvest.
func (j *harvestJob) write() {
	j.mu.Lock()
	text, err := json.Marshal((*underwayFile)(&j.Underway))
	j.mu.Unlock()
	if err != nil {
		return
	}
	err = os.WriteFile(j.path(), text, 0o600)
	if errors.Is(err, fs.ErrNotExist) && os.MkdirAll(j.of.folder, 0o700) == nil {
		_ = os.WriteFile(j.path(), text, 0o600)
	}
}
