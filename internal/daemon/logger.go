package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/pmh-bridge/bridge/event"
	"github.com/pmh-bridge/bridge/internal/defect"
	"github.com/pmh-bridge/bridge/internal/harvest"
)

// NewLogger returns a logger that writes each line as text, for people, or as a JSON
// object, for log collectors. Both remove the secrets of URLs, and name the harvest that a
// line belongs to.
func NewLogger(w io.Writer, level slog.Level, asJSON bool) *slog.Logger {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: redactAttr}
	if asJSON {
		return slog.New(harvestHandler{slog.NewJSONHandler(w, o)})
	}
	return slog.New(harvestHandler{slog.NewTextHandler(w, o)})
}

// redactAttr is Redact for the attributes of a line. It writes durations as in the
// configuration, also in JSON.
func redactAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().String())
	case slog.KindString, slog.KindAny:
		text := a.Value.String()
		if hidden := Redact(text); hidden != text {
			a.Value = slog.StringValue(hidden)
		}
	}
	return a
}

// harvestHandler adds to each line the harvest that its context belongs to.
type harvestHandler struct{ slog.Handler }

// harvestKey is the context key of a harvest.
type harvestKey struct{}

// tagged returns a context for one harvest of a Source. Lines that are logged with it have
// the attribute harvest: the Source's number, and the time at which the harvest began.
func (b *Bridge) tagged(ctx context.Context, src *Source) context.Context {
	return context.WithValue(ctx, harvestKey{}, fmt.Sprintf("%d-%s", src.ID, b.now().UTC().Format("20060102T150405.000Z")))
}

// Handle implements slog.Handler.
func (h harvestHandler) Handle(ctx context.Context, r slog.Record) error {
	if tag, ok := ctx.Value(harvestKey{}).(string); ok {
		r.AddAttrs(slog.String("harvest", tag))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h harvestHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return harvestHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h harvestHandler) WithGroup(name string) slog.Handler {
	return harvestHandler{h.Handler.WithGroup(name)}
}

// logHarvest logs the result of a harvest, without news at level debug: there is news if
// the history of its Source has a row for it. before is the Source's schedule before the
// harvest.
func (b *Bridge) logHarvest(ctx context.Context, src *Source, before *event.Schedule, report *harvest.Report, failed error) {
	log := b.opt.Logger.With("set", src.Set, "source", src.URL)
	now, _ := b.Log.Schedule(ctx, src.ID) // it was written a moment ago
	if failed != nil {
		log.ErrorContext(ctx, "harvest failed", "error", failed, "failures", now.Failures, "again", now.Next.Time())
		defect.Log(log, failed)
		return
	}
	if before.FailingSince != 0 && now.FailingSince == 0 {
		log = log.With("failed_since", before.FailingSince.Time())
	}
	var was harvest.Report
	_ = json.Unmarshal(before.Report, &was) // the first harvest has none before it
	if now.Harvests == before.Harvests {
		log.DebugContext(ctx, "harvested as before", "documents", report.Documents)
	} else {
		log.InfoContext(ctx, "harvested", "created", report.Created, "updated", report.Updated, "deleted", report.Deleted, "documents", report.Documents,
			"pending", report.Pending, "held", report.Held, "quarantined", report.Quarantined)
	}
	for _, w := range report.Warnings {
		if !slices.Contains(was.Warnings, w) {
			log.WarnContext(ctx, w)
		}
	}
	if report.Gap != "" && report.Gap != was.Gap {
		log.WarnContext(ctx, "gap: "+report.Gap)
	}
}
