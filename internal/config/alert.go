package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Alert notifies one receiver when conditions begin and end. It has one of Command, Webhook
// and Mail.
type Alert struct {
	On []Condition `toml:"on"`
	// Command is a program with its arguments, the first an absolute path.
	Command []string `toml:"command" form:"argument"`
	// Webhook is a URL; it may be a secret.
	Webhook Secret `toml:"webhook"`
	// Mail is a mail address, whose domain is a name.
	Mail string `toml:"mail" form:"from"`
}

// The kinds of conditions.
const (
	OnFailing    = "failing"    // a Source, an ingest server or a hub has failed for a time
	OnHeld       = "held"       // deletions of a Source wait for an operator
	OnGap        = "gap"        // a document of a Source is missing
	OnQuarantine = "quarantine" // a Source has so many bad inputs in quarantine
	OnReview     = "review"     // so many submissions wait for a reviewer
	OnDumps      = "dumps"      // the newest dumps of a set could not be made
	OnDisk       = "disk"       // less than a share of the disk is free
	OnLog        = "log"        // the log has lost something, or cannot be read
)

// Condition is a condition of an alert. Only the threshold of its kind has a meaning.
type Condition struct {
	Kind  string
	For   time.Duration // of OnFailing
	Count int64         // of OnQuarantine and OnReview: at least
	Share float64       // of OnDisk, in percent: below
}

// parseCondition reads "failing:24h", "held", "gap", "quarantine:100", "review:1",
// "dumps", "disk:10%" or "log". The default thresholds are 24 hours for failing, 1 for quarantine
// and review, and 10% for disk.
func parseCondition(text string) (Condition, error) {
	kind, value, given := strings.Cut(text, ":")
	c := Condition{Kind: kind, For: 24 * time.Hour, Count: 1, Share: 10}
	valid := true
	switch kind {
	case OnFailing:
		if given {
			c.For, valid = parseDuration(value)
			valid = valid && c.For >= 0
		}
	case OnQuarantine, OnReview:
		if given {
			n, err := strconv.ParseInt(value, 10, 64)
			c.Count, valid = n, err == nil && n > 0
		}
	case OnDisk:
		if given {
			share, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
			c.Share, valid = share, err == nil && share > 0 && share < 100
		}
	case OnHeld, OnGap, OnDumps, OnLog:
		valid = !given
	default:
		valid = false
	}
	if !valid {
		return c, fmt.Errorf(`%q is not a condition; write "failing:24h", "held", "gap", "quarantine:100", "review:1", "dumps", "disk:10%%" or "log"`, text)
	}
	return c, nil
}

func (t table) alert(c *Config) Alert {
	var a Alert
	t.decode(&a)
	t.reportUnknown(keysOf(a))
	for _, text := range t.texts("on", func(s string) (string, error) { _, err := parseCondition(s); return s, err }) {
		on, _ := parseCondition(text)
		a.On = append(a.On, on)
	}
	if t.empty("on") {
		t.report("on", `is missing; write what the alert is on, like on = ["failing:24h", "held", "gap"]`)
	}
	to := t.among("command webhook webhook_file mail")
	switch {
	case len(to) == 0:
		t.report("", `tells nobody; write command = ["/path"], webhook_file = "path" or mail = "box@example.org"`)
	case len(to) > 1:
		t.report(to[1], "is given beside %s; write an [[alert]] for each", to[0])
	case t.has("command") && (len(a.Command) == 0 || !strings.HasPrefix(a.Command[0], "/")):
		t.report("command", `must begin with an absolute path; write command = ["/usr/local/bin/notify"]`)
	case t.has("mail") && c.Mail.From == "":
		t.report("mail", `cannot be sent: no address is known that mail could come from; write from = "bridge@example.org" under [mail]`)
	}
	if url := a.Webhook.Reveal(); url != "" && a.Webhook.IsRead() {
		if _, err := checkWeb(url); err != nil {
			t.report(to[0], `is not a URL of a web server; write a whole one, like "https://chat.example.org/hooks/..."`)
		}
	}
	return a
}
