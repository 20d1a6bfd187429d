package config

import (
	"testing"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/doctable"
)

func TestTheDocumentHasEveryFlag(t *testing.T) {
	flags := pflag.NewFlagSet("scheduler", pflag.ContinueOnError)
	Flags(flags)
	doctable.Table{Page: "operations.md", Heading: "Flags of `millrace-scheduler`", Columns: doctable.FlagColumns}.Compare(t, doctable.Flags(flags))
}
