package console

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/pmh-bridge/bridge/internal/status"
)

// days are consecutive days of UTC, the oldest first.
type days []status.Day

// sum adds up the days of rows, which have the same dates.
func sum(rows []sourceRow) (all days) {
	for i := range rows {
		if all == nil {
			all = slices.Clone(rows[i].Days)
			continue
		}
		for j, d := range rows[i].Days {
			all[j].Harvests += d.Harvests
			all[j].Failed += d.Failed
			all[j].Created += d.Created
			all[j].Updated += d.Updated
			all[j].Deleted += d.Deleted
		}
	}
	return all
}

// dateOf returns the date of a day in another layout.
func dateOf(d *status.Day, layout string) string {
	t, err := time.Parse(time.DateOnly, d.Date)
	if err != nil {
		return d.Date
	}
	return t.Format(layout)
}

// Events returns the number of events of all days.
func (ds days) Events() (n int64) {
	for i := range ds {
		n += ds[i].Events()
	}
	return n
}

func (ds days) most() (most int64) {
	for i := range ds {
		most = max(most, ds[i].Events())
	}
	return most
}

// Told returns the days with harvests or events, the newest first.
func (ds days) Told() (told days) {
	for i := len(ds) - 1; i >= 0; i-- {
		if d := ds[i]; d.Events() > 0 || d.Failed > 0 {
			told = append(told, d)
		}
	}
	return told
}

// summary describes a chart in words.
func (ds days) summary() string {
	text := fmt.Sprintf("%s in %d days", counted(ds.Events(), "event", "events"), len(ds))
	for i := range ds {
		if n := ds[i].Events(); n > 0 && n == ds.most() {
			return text + fmt.Sprintf(", most on %s: %s", dateOf(&ds[i], "2 January"), number(n))
		}
	}
	return text
}

// spark draws the events of days as a small chart.
func spark(ds days) template.HTML {
	const step, height = 3, 18
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="spark" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="%s">`, len(ds)*step, height, ds.summary())
	most := max(ds.most(), 1)
	for i := range ds {
		x, d := i*step, ds[i]
		if n := d.Events(); n > 0 {
			h := max(2, float64(n)*height/float64(most))
			fmt.Fprintf(&b, `<rect x="%d" y="%.1f" width="2" height="%.1f"/>`, x, height-h, h)
		} else {
			fmt.Fprintf(&b, `<rect class="none" x="%d" y="%d" width="2" height="1"/>`, x, height-1)
		}
		if d.Failed > 0 {
			fmt.Fprintf(&b, `<rect class="failed" x="%d" y="0" width="2" height="2"/>`, x)
		}
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// bars draws the events of days, by kind, with a scale.
func bars(ds days) template.HTML {
	const width, height, left, bottom = 720, 140, 46, 18
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="bars" viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, height, ds.summary())
	most, plot := niceTop(ds.most()), float64(height-bottom-8)
	for i := range 3 {
		n := most * int64(i) / 2
		y := 8 + plot - plot*float64(n)/float64(most)
		fmt.Fprintf(&b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1[3]f"/><text class="scale" x="%d" y="%.1f">%s</text>`, left, width, y, left-6, y+4, number(n))
	}
	step := float64(width-left) / float64(max(len(ds), 1))
	for i := range ds {
		d, x, y := ds[i], float64(left)+float64(i)*step, 8+plot
		fmt.Fprintf(&b, `<g><title>%s: %s created, %s updated, %s deleted; %s, %s failed</title>`, d.Date, number(d.Created), number(d.Updated), number(d.Deleted),
			counted(d.Harvests, "harvest", "harvests"), number(d.Failed))
		fmt.Fprintf(&b, `<rect class="hover" x="%.1f" y="8" width="%.1f" height="%.1f"/>`, x, step, plot)
		for _, part := range []struct {
			class string
			n     int64
		}{{"created", d.Created}, {"updated", d.Updated}, {"deleted", d.Deleted}} {
			if part.n == 0 {
				continue
			}
			h := max(1, plot*float64(part.n)/float64(most))
			y -= h
			fmt.Fprintf(&b, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, part.class, x+step*.1, y, step*.8, h)
		}
		if d.Failed > 0 {
			fmt.Fprintf(&b, `<rect class="failed" x="%.1f" y="%.1f" width="%.1f" height="3"/>`, x+step*.1, 9+plot, step*.8)
		}
		b.WriteString(`</g>`)
		if (len(ds)-1-i)%7 == 0 {
			fmt.Fprintf(&b, `<text class="date" x="%.1f" y="%d">%s</text>`, min(x+step/2, width-22), height-2, dateOf(&d, "2 Jan"))
		}
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// niceTop returns the end of a scale: the first of 2, 4, 10, 20, 40, 100 and so on that
// is not below n.
func niceTop(n int64) int64 {
	for scale := int64(1); ; scale *= 10 {
		for _, top := range []int64{2, 4, 10} {
			if top*scale >= n {
				return top * scale
			}
		}
	}
}
