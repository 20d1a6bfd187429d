package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/manpages"
	"github.com/millrace/millrace/services/gpuworker/internal/config"
)

// The worker parses its flags itself; its page is that of a command that has them.
func TestTheManualPagesAreCurrent(t *testing.T) {
	short, rest, _ := strings.Cut(help, "\n")
	examples, rest, _ := strings.Cut(rest[strings.Index(rest, "Examples:\n")+len("Examples:\n"):], "\n\nFlags:")
	_, codes, _ := strings.Cut(rest, "%s\n")
	page := &cobra.Command{
		Use: "millrace-worker --models DIR", Short: short, Long: short + ".\n\n" + codes, Example: examples, Run: func(*cobra.Command, []string) {},
	}
	(&config.Config{}).Register(page.Flags())
	manpages.Compare(t, page)
}
