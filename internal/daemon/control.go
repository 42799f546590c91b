package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	// controlName is the socket in the data folder.
	controlName = "control"
	// socketPath is the length of the longest socket path that every system allows.
	socketPath = 100
	// mostDecisions bounds the bytes of one request.
	mostDecisions = 64 << 20
)

// cannotCommand says what fails without the socket, and what to do.
const cannotCommand = "bridge reload, bridge source pause and all other commands that change something cannot reach this process: mend what the error says about the socket control in the data folder, which has to be on a file system with sockets, and restart bridge serve; meanwhile SIGHUP reads the configuration again"

// serveDecisions applies the decisions of other processes until ctx ends.
func (b *Bridge) serveDecisions(ctx context.Context) {
	l, remove, err := listenControl(b.Config().Data)
	if err != nil {
		b.opt.Logger.Error(cannotCommand, "error", err)
		return
	}
	defer remove()
	server := &http.Server{Handler: http.HandlerFunc(b.takeDecisions), ReadTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(end)
	})
	defer stop()
	if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		b.opt.Logger.Error(cannotCommand, "error", err)
	}
}

// listenControl listens on the socket in a data folder. The caller holds the lock, so
// an existing socket is that of a process that was killed. Where the path would be too
// long, the socket is in a temporary folder and the data folder has a link to it.
func listenControl(folder string) (l net.Listener, remove func(), err error) {
	path := filepath.Join(folder, controlName)
	if was, err := os.Readlink(path); err == nil {
		_, _ = os.Remove(was), os.Remove(filepath.Dir(was)) // a folder with anything else stays
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	remove = func() { _ = os.Remove(path) }
	at := path
	if len(path) > socketPath {
		dir, err := os.MkdirTemp("", "bridge-")
		if err != nil {
			return nil, nil, err
		}
		at = filepath.Join(dir, controlName)
		if err := os.Symlink(at, path); err != nil {
			return nil, nil, errors.Join(err, os.Remove(dir))
		}
		remove = func() { _, _ = os.Remove(path), os.RemoveAll(dir) }
	}
	if l, err = (&net.ListenConfig{}).Listen(context.Background(), "unix", at); err == nil {
		err = os.Chmod(at, 0o600)
	}
	if err != nil {
		remove()
		return nil, nil, err
	}
	return l, remove, nil
}

// takeDecisions applies the decisions of a request in their order, and writes a line of
// JSON for each when it is committed or refused.
func (b *Bridge) takeDecisions(w http.ResponseWriter, r *http.Request) {
	var all []Decision
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostDecisions)).Decode(&all); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	for i := range all {
		if r.Context().Err() != nil {
			return
		}
		done, err := b.Decide(context.WithoutCancel(r.Context()), all[i])
		if err != nil {
			done.Error = err.Error()
			b.opt.Logger.Warn("a decision was refused", "about", all[i].subject(), "error", err)
		}
		if out.Encode(done) != nil || flush.Flush() != nil {
			return
		}
	}
}

// ErrNotServing means that no process serves from the data folder.
var ErrNotServing = errors.New("no bridge serve is running on this data folder")

// SendDecisions asks the process that serves from a data folder to apply decisions in their
// order, and calls told with the result of each. It returns ErrNotServing when there is no
// such process. After any other error, the results for which told was not called are
// unknown.
func SendDecisions(ctx context.Context, folder string, all []Decision, told func(i int, done DecisionResult)) error {
	at := filepath.Join(folder, controlName)
	if linked, err := os.Readlink(at); err == nil {
		at = linked
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", at)
		if errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		if err != nil {
			return nil, errors.Join(ErrNotServing, err)
		}
		return conn, nil
	}}}
	body, writer := io.Pipe()
	go func() { writer.CloseWithError(json.NewEncoder(writer).Encode(all)) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://bridge/decisions", body)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("this user may not ask the bridge serve that has the data folder %s: run the command as the user whom it belongs to: %w", folder, errors.Unwrap(err))
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the process that has the data folder answers %s", resp.Status)
	}
	lines := json.NewDecoder(resp.Body)
	for i := range all {
		var done DecisionResult
		if err := lines.Decode(&done); err != nil {
			return fmt.Errorf("the process that has the data folder has ended, or does not answer; whether %s was decided shows %s: %w", all[i].subject(), all[i].seen(), err)
		}
		told(i, done)
	}
	return nil
}
