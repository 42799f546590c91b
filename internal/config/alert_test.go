package config

import (
	"testing"
	"time"
)

// Each condition has its threshold, or the default one of its kind, and anything else is
// refused with what may be written.
func TestConditions(t *testing.T) {
	c := func(kind string) Condition { return Condition{Kind: kind, For: 24 * time.Hour, Count: 1, Share: 10} }
	for text, want := range map[string]Condition{
		"failing": c(OnFailing), "failing:90m": {OnFailing, 90 * time.Minute, 1, 10}, "failing:7d": {OnFailing, 7 * 24 * time.Hour, 1, 10},
		"held": c(OnHeld), "gap": c(OnGap), "log": c(OnLog), "quarantine": c(OnQuarantine), "review": c(OnReview), "disk": c(OnDisk),
		"quarantine:100": {OnQuarantine, 24 * time.Hour, 100, 10}, "review:2": {OnReview, 24 * time.Hour, 2, 10}, "disk:2.5%": {OnDisk, 24 * time.Hour, 1, 2.5},
	} {
		if got, err := parseCondition(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "fails", "failing:", "failing:soon", "held:1", "log:", "quarantine:0", "review:many", "disk:0%", "disk:100%", "disk:x"} {
		if _, err := parseCondition(text); !said(err, " is not a condition; write ") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
