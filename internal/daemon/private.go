package daemon

import (
	"log/slog"
	"slices"

	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/server"
)

// Redact returns a text without the secrets of the URLs in it, as pages show it
// too: see server.Redact. Whatever is printed that may name a URL goes through
// it, but for what records and their representations are called: these are
// published.
func Redact(text string) string { return server.Redact(text) }

// RedactAttr is Redact for the lines of a log, as slog.HandlerOptions wants it.
func RedactAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString, slog.KindAny:
		text := a.Value.String()
		if hidden := Redact(text); hidden != text {
			a.Value = slog.StringValue(hidden)
		}
	}
	return a
}

// RedactReport is Redact for the texts of a report; nil stays nil.
func RedactReport(r *harvest.Report) *harvest.Report {
	if r == nil {
		return nil
	}
	out := *r
	out.Gap, out.Error, out.Moved, out.Warnings, out.Examples = Redact(r.Gap), Redact(r.Error), Redact(r.Moved), slices.Clone(r.Warnings), slices.Clone(r.Examples)
	for i, w := range out.Warnings {
		out.Warnings[i] = Redact(w)
	}
	for i := range out.Examples {
		out.Examples[i].First = Redact(out.Examples[i].First)
	}
	return &out
}
