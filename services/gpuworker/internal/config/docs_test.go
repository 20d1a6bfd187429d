package config

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/doctable"
)

func TestDocumentHasEveryFlag(t *testing.T) {
	flags := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	(&Config{}).Register(flags)
	doctable.Table{Page: "flags.md", Heading: "Flags of `millrace-worker`", Columns: doctable.FlagColumns}.Compare(t, doctable.Flags(flags))
}
