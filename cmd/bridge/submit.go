package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/config"
	"github.com/pmh-bridge/bridge/internal/daemon"
	"github.com/pmh-bridge/bridge/internal/submission"
	"github.com/pmh-bridge/bridge/sip"
)

// submitFlags are the flags of bridge submit as they were typed.
type submitFlags struct {
	server               daemon.IngestServer
	files                daemon.Files
	name, email          string
	passwordFile         string
	identifier           string
	noIdentifier, asJSON bool
}

func submitCommand() *cobra.Command {
	cmd := command("submit")
	var f submitFlags
	flags := cmd.Flags()
	flags.StringVar(&f.server.URL, "server", "", "`URL` of the ingest server")
	flags.StringVar(&f.server.User, "user", "", "user `name` at the server")
	flags.StringVar(&f.passwordFile, "password-file", "", "the `file` that holds the password")
	flags.StringVar(&f.files.Recipient, "recipient", "", "`URL` of the notification recipient: http:, https:, smtp: or mailto:")
	flags.StringVar(&f.name, "submitter", "", "`name` of the submitter")
	flags.StringVar(&f.email, "email", "", "mail `address` of the submitter")
	flags.StringVar(&f.files.Sequence, "sequence", "", "`name` of the sequence that the records belong to")
	flags.StringVar(&f.identifier, "identifier", "", "the source-`identifier` of a single FILE")
	flags.BoolVar(&f.noIdentifier, "no-identifier", false, "send no identifier")
	flags.StringVar(&f.files.Format, "format", "", "`URL` of the schema that the files follow")
	flags.BoolVar(&f.files.Force, "force", false, "do not ask the server which formats it accepts, and send all")
	flags.IntVar(&f.files.Workers, "workers", 4, "`number` of requests at a time, 1 to 64")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON lines")
	cmd.Args = takes(1, math.MaxInt)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.complete(); err != nil {
			return usage(err)
		}
		files, skipped, err := f.find(args, cmd.InOrStdin())
		for _, name := range skipped {
			fmt.Fprintf(cmd.ErrOrStderr(), "bridge: %s is skipped\n", oneLine(name))
		}
		if err != nil {
			return usage(err)
		}
		f.server.Version, f.server.Logger = release(), warnings(cmd.ErrOrStderr())
		out := &submitPrinter{out: cmd.OutOrStdout(), json: f.asJSON, bar: newBar(cmd.ErrOrStderr(), f.asJSON, int64(len(files)), "submitting", "files"), count: map[submission.State]int{}}
		f.files.Waits = func(err error, wait time.Duration) {
			if out.bar != nil {
				_ = out.bar.Clear()
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "bridge: trying again in %s: %s\n", short(wait), daemon.Redact(err.Error()))
		}
		return f.submit(cmd.Context(), files, out)
	}
	return cmd
}

// complete checks the flags against each other.
func (f *submitFlags) complete() error {
	switch {
	case f.server.URL == "":
		return errors.New("say where to submit: bridge submit --server URL FILE")
	case (f.name == "") != (f.email == ""):
		return errors.New("--submitter and --email go together: give both, or neither")
	case (f.server.User == "") != (f.passwordFile == ""):
		return errors.New("--user and --password-file go together: give both, or neither")
	case f.identifier != "" && f.noIdentifier:
		return errors.New("--identifier and --no-identifier exclude each other")
	case f.files.Workers < 1 || f.files.Workers > 64:
		return fmt.Errorf("--workers %d: want 1 to 64", f.files.Workers)
	}
	if f.name != "" {
		f.files.Submitter = &sip.Submitter{Name: f.name, EmailAddress: f.email}
	}
	if f.passwordFile != "" {
		password, err := config.ReadSecret(f.passwordFile)
		if err != nil {
			return fmt.Errorf("the password: %w", err)
		}
		f.server.Password = password.Reveal()
	}
	return nil
}

// standardInput is the FILE that means standard input.
const standardInput = "-"

// find returns the files that the arguments mean, with their identifiers, and the files of
// folders that are skipped.
func (f *submitFlags) find(args []string, stdin io.Reader) (files []daemon.File, skipped []string, err error) {
	named := map[string]string{} // the file of each identifier
	for _, arg := range args {
		names, others, err := filesOf(arg)
		skipped = append(skipped, others...)
		if err != nil {
			return nil, skipped, err
		}
		for _, name := range names {
			file := daemon.File{Name: name, Open: func() (io.ReadCloser, error) { return os.Open(name) }}
			id := filepath.Base(name)
			if isXMLFile(id) {
				id = id[:len(id)-len(".xml")]
			}
			if name == standardInput {
				file.Open = func() (io.ReadCloser, error) { return io.NopCloser(stdin), nil }
				id = ""
			}
			if id = cmp.Or(f.identifier, id); id != "" && !f.noIdentifier {
				if other, ok := named[id]; ok {
					return nil, skipped, fmt.Errorf("%s and %s would both be submitted as %s, and the second replace the first: submit them one by one with --identifier, or with --no-identifier", other, name, id)
				}
				named[id] = name
				file.Identifier = &id
			}
			files = append(files, file)
		}
	}
	return files, skipped, nil
}

// isXMLFile reports whether a file is XML by its name.
func isXMLFile(name string) bool { return strings.EqualFold(filepath.Ext(name), ".xml") }

// filesOf returns a file, or the XML files of a folder, sorted, and the other files of the
// folder. It ignores hidden files.
func filesOf(arg string) (names, skipped []string, err error) {
	if arg == standardInput {
		return []string{arg}, nil, nil
	}
	info, err := os.Stat(arg)
	if err != nil || !info.IsDir() {
		return []string{arg}, nil, err
	}
	entries, err := os.ReadDir(arg)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		name := filepath.Join(arg, e.Name())
		switch {
		case e.IsDir():
			skipped = append(skipped, name+string(filepath.Separator))
		case isXMLFile(name) && !strings.HasPrefix(e.Name(), "."):
			names = append(names, name)
		default:
			skipped = append(skipped, name)
		}
	}
	if len(names) == 0 {
		return nil, skipped, fmt.Errorf("%s: there is no .xml file in this folder", arg)
	}
	return names, skipped, nil
}

func (f *submitFlags) submit(ctx context.Context, files []daemon.File, out *submitPrinter) error {
	err := f.server.Submit(ctx, f.files, files, out.print)
	if out.bar != nil {
		_ = out.bar.Finish()
	}
	switch {
	case errors.As(err, new(*daemon.RequestError)):
		return usage(err)
	case ctx.Err() != nil:
		return errors.New("interrupted; what is not listed was not submitted")
	case err != nil:
		return err
	case out.err != nil:
		return out.err
	}
	return out.outcome(len(files), f.files.Recipient != "")
}

// submitPrinter prints the outcome of each file, and counts the outcomes.
type submitPrinter struct {
	out      io.Writer
	json     bool
	bar      *progressbar.ProgressBar // nil without a terminal
	count    map[submission.State]int
	unlisted bool
	err      error // the first error of out
}

// The line of bridge submit --json.
type jsonSubmitted struct {
	File     string  `json:"file"`
	Outcome  string  `json:"outcome"`
	Assigned string  `json:"assigned-identifier,omitempty"`
	Reason   string  `json:"reason,omitempty"`
	Seconds  float64 `json:"seconds"`
}

func (p *submitPrinter) print(r daemon.FileResult) {
	p.count[r.State]++
	p.unlisted = p.unlisted || r.Unlisted
	r.Reason = daemon.Redact(r.Reason)
	if p.bar != nil {
		_ = p.bar.Clear()
		defer func() { _ = p.bar.Add(1) }()
	}
	if p.json {
		p.err = cmp.Or(p.err, printJSON(p.out, jsonSubmitted{r.Name, r.State.String(), r.Assigned, r.Reason, r.Took.Seconds()}))
		return
	}
	line := oneLine(r.Name) + ": " + r.State.String()
	if said := oneLine(cmp.Or(r.Assigned, r.Reason)); said != "" {
		line += ": " + said
	}
	_, err := fmt.Fprintln(p.out, line)
	p.err = cmp.Or(p.err, err)
}

// outcome returns the error with the exit status. With told, somebody is notified of the
// final result, so provisional counts as done.
func (p *submitPrinter) outcome(files int, told bool) error {
	done := p.count[submission.StateAccepted]
	if told {
		done += p.count[submission.StateProvisional]
	}
	if done == files {
		return nil
	}
	var parts []string
	for _, state := range slices.Sorted(maps.Keys(p.count)) {
		parts = append(parts, fmt.Sprintf("%d %s", p.count[state], state))
	}
	err := fmt.Errorf("of %s: %s", plural(files, "file", "files"), strings.Join(parts, ", "))
	if p.unlisted {
		err = fmt.Errorf("%w; --format URL says of what format the files are, --force sends them anyway", err)
	}
	if p.count[submission.StateProvisional] > 0 && !told {
		err = fmt.Errorf("%w; the final answer to what is provisional goes nowhere without --recipient", err)
	}
	if done == 0 && p.count[submission.StateProvisional] == 0 {
		return fmt.Errorf("nothing was accepted %w", err)
	}
	return partFailure(fmt.Errorf("done in part %w", err))
}
