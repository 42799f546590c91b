package defect_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pmh-bridge/bridge/internal/defect"
)

func TestGuard(t *testing.T) {
	if err := defect.Guard(func() error { return io.EOF }); err != io.EOF {
		t.Errorf("an error became %v", err)
	}
	for _, value := range []any{"a bug", io.ErrUnexpectedEOF} {
		err := defect.Guard(func() error { panic(value) })
		var found *defect.Error
		if !errors.As(err, &found) || found.Value != value || !strings.Contains(string(found.Stack), "TestGuard") || strings.Contains(err.Error(), "\n") {
			t.Errorf("a panic with %v became %v", value, err)
		}
		if want, is := value.(error); is && !errors.Is(err, want) {
			t.Errorf("%v does not say what it was", err)
		}
	}
}
