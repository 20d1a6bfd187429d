package doctable

import (
	"github.com/spf13/pflag"
)

// FlagColumns are the columns of a table of Flags.
var FlagColumns = []string{"flag", "default", "meaning"}

// Flags returns the rows of a table of flags, by name.
func Flags(set *pflag.FlagSet) (rows [][]string) {
	set.VisitAll(func(f *pflag.Flag) {
		kind, usage := pflag.UnquoteUsage(f)
		name := "`--" + f.Name + "`"
		if kind != "" {
			name = "`--" + f.Name + " " + kind + "`"
		}
		value := ""
		switch f.DefValue {
		case "", "0", "false", "[]", "0s":
		default:
			value = "`" + f.DefValue + "`"
		}
		rows = append(rows, []string{name, value, usage})
	})
	return rows
}
