package daemon

import (
	"log/slog"
	"slices"

	"github.com/pmh-bridge/bridge/internal/harvest"
	"github.com/pmh-bridge/bridge/internal/server"
)

// Private returns a text without the secrets of the URLs in it, as pages show it
// too: see server.Private. Whatever is printed that may name a URL goes through
// it, but for what records and their representations are called: these are
// published.
func Private(text string) string { return server.Private(text) }

// PrivateAttr is Private for the lines of a log, as slog.HandlerOptions wants it.
func PrivateAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString, slog.KindAny:
		text := a.Value.String()
		if hidden := Private(text); hidden != text {
			a.Value = slog.StringValue(hidden)
		}
	}
	return a
}

// PrivateReport is Private for the texts of a report; nil stays nil.
func PrivateReport(r *harvest.Report) *harvest.Report {
	if r == nil {
		return nil
	}
	out := *r
	out.Gap, out.Error, out.Moved, out.Warnings, out.Examples = Private(r.Gap), Private(r.Error), Private(r.Moved), slices.Clone(r.Warnings), slices.Clone(r.Examples)
	for i, w := range out.Warnings {
		out.Warnings[i] = Private(w)
	}
	for i := range out.Examples {
		out.Examples[i].First = Private(out.Examples[i].First)
	}
	return &out
}
