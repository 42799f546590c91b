package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pmh-bridge/bridge/internal/validate"
)

func validateCommand() *cobra.Command {
	cmd := command("validate")
	var o validate.Options
	var as string
	var strict, quiet bool
	flags := cmd.Flags()
	flags.StringVar(&as, "as", "", "the `protocol`: atom-pmh, resourcesync, oai-pmh or sip (default: what the root element says)")
	flags.BoolVar(&o.Follow, "follow", false, "check the whole chain of a feed, the whole Source of a document, or the whole repository")
	flags.BoolVar(&o.Contents, "contents", false, "fetch resources, representations and packages too, and compare them with what is said of them")
	flags.BoolVar(&strict, "strict", false, "exit with status 1 where a should is broken, too")
	flags.BoolVar(&quiet, "quiet", false, "print broken musts and shoulds only, no notes and no documents")
	flags.StringVar(&o.Base, "base", "", "the `URL` that files and standard input are copies of")
	flags.StringSliceVar(&o.AllowHosts, "allow-host", nil, "a `host` besides the document's own that links may lead to; may be repeated")
	flags.IntVar(&o.MaxDocuments, "max-documents", 0, "with --follow, how many documents are checked at most (default 10000)")
	flags.IntVar(&o.MaxFindings, "max-findings", 0, "how many places in a document are printed for each rule; the others are counted (default 20)")
	asJSON := addJSON(cmd)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New("name a URL, a file, or - for standard input, as in: bridge validate https://example.org/feed.atom")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.As = validate.Protocol(as)
		switch o.As {
		case "", validate.AtomPMH, validate.ResourceSync, validate.OAIPMH, validate.SIP:
		default:
			return usage(fmt.Errorf("--as %q: want atom-pmh, resourcesync, oai-pmh or sip", as))
		}
		if (o.Follow || o.Contents) && (o.Base != "" || len(args) == 1 && args[0] == "-") {
			return usage(errors.New("--follow and --contents need documents that can be asked for: name URLs or files, and leave --base out"))
		}
		if o.MaxDocuments < 0 || o.MaxFindings < 0 {
			return usage(errors.New("--max-documents and --max-findings want a number above 0"))
		}
		out := cmd.OutOrStdout()
		var printed error
		hide := secretsOf(args).Replace
		o.Report = func(f validate.Finding) {
			f.URL, f.Record, f.Found, f.Expected = hide(f.URL), hide(f.Record), hide(f.Found), hide(f.Expected)
			switch {
			case quiet && f.Severity == validate.Note:
			case *asJSON:
				printed = errors.Join(printed, printJSON(out, f))
			default:
				_, err := fmt.Fprintln(out, oneLine(f.String()))
				printed = errors.Join(printed, err)
			}
		}
		o.Checked = func(d validate.Document) {
			d.URL = hide(d.URL)
			switch {
			case quiet:
			case *asJSON:
				printed = errors.Join(printed, printJSON(out, d))
			default:
				_, err := fmt.Fprintf(out, "%s: %s, %s: %s\n", oneLine(d.URL), oneLine(d.Kind), plural(d.Entries, "entry", "entries"), verdict(d.Musts, d.Shoulds, d.Notes))
				printed = errors.Join(printed, err)
			}
		}
		o.Stdin, o.Version = cmd.InOrStdin(), release()
		sum, err := validate.Run(cmd.Context(), o, args)
		if err != nil || printed != nil {
			return errors.Join(err, printed)
		}
		if *asJSON {
			err = printJSON(out, sum)
		} else {
			said := verdict(sum.Musts, sum.Shoulds, sum.Notes)
			switch {
			case sum.Unread > 0 && sum.Documents == 0:
				said = fmt.Sprintf("%d could not be checked", sum.Unread)
			case sum.Unread > 0:
				said += fmt.Sprintf("; %d could not be checked", sum.Unread)
			}
			_, err = fmt.Fprintf(out, "checked %s: %s\n", plural(sum.Documents, "document", "documents"), said)
		}
		switch {
		case err != nil:
			return err
		case sum.Musts > 0, strict && sum.Shoulds > 0:
			return &exitError{status: exitFailed}
		case sum.Unread > 0:
			return &exitError{status: exitPartly}
		}
		return nil
	}
	return cmd
}

// secretsOf replaces the values in the queries of typed URLs by ***, wherever they stand in a URL.
// Those of OAI-PMH are no secrets, and say which request was answered.
func secretsOf(typed []string) *strings.Replacer {
	var pairs []string
	for _, target := range typed {
		front, query, _ := strings.Cut(target, "?")
		if !strings.Contains(front, "://") {
			continue // a file
		}
		query, _, _ = strings.Cut(query, "#")
		for part := range strings.SplitSeq(query, "&") {
			name, _, _ := strings.Cut(part, "=")
			hidden := name + "=***"
			switch name {
			case "", "verb", "metadataPrefix", "set", "from", "until", "identifier", "resumptionToken":
				continue
			case part:
				hidden = "***"
			}
			for _, front := range []string{"?", "&", "&amp;"} {
				pairs = append(pairs, front+part, front+hidden)
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// verdict counts the places where rules are broken.
func verdict(musts, shoulds, notes int) string {
	if musts+shoulds+notes == 0 {
		return "conforms"
	}
	return fmt.Sprintf("%d must, %d should, %s", musts, shoulds, plural(notes, "note", "notes"))
}
