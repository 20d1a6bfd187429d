package config

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/doctable"
)

func TestDocumentHasEveryFlag(t *testing.T) {
	flags := pflag.NewFlagSet("scheduler", pflag.ContinueOnError)
	(&Config{}).Register(flags)
	doctable.Table{Page: "flags.md", Heading: "Flags of `millrace-scheduler`", Columns: doctable.FlagColumns}.Compare(t, doctable.Flags(flags))
}
