package manpages

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestPageEscapesRoff(t *testing.T) {
	run := func(*cobra.Command, []string) {}
	root := &cobra.Command{Use: "prog", Short: "Does it", Long: "It does [this] (and that).\n\n.so /etc/passwd\n'quoted' C:\\x\n\n  a  table\n  of  two", Run: run}
	root.Flags().Int("many-things", 3, "so `n` many, [1, 9] (unset: 3)")
	root.Flags().BoolP("quiet", "q", false, "say *nothing*")
	root.Flags().Bool("secret", false, "not shown")
	require.NoError(t, root.Flags().MarkHidden("secret"))
	root.AddCommand(&cobra.Command{Use: "sub ARG", Short: "A part", Example: "  prog sub -x", Run: run})
	pages := map[string]string{}
	add(t, pages, root)
	require.Equal(t, map[string]string{
		"prog.1": `.TH PROG 1 "" Millrace "Millrace's manual"
.SH NAME
prog \- Does it
.SH SYNOPSIS
.nf
prog [flags]
.fi
.SH DESCRIPTION
It does [this] (and that).
.PP
\&.so /etc/passwd
\&'quoted' C:\ex
.PP
.nf
  a  table
  of  two
.fi
.SH OPTIONS
.TP
\fB\-h\fR, \fB\-\-help\fR
help for prog
.TP
\fB\-\-many\-things\fR \fIn\fR
so n many, [1, 9] (unset: 3) (default 3)
.TP
\fB\-q\fR, \fB\-\-quiet\fR
say *nothing*
.SH SEE ALSO
\fBprog\-sub\fR(1)
`,
		"prog-sub.1": `.TH PROG\-SUB 1 "" Millrace "Millrace's manual"
.SH NAME
prog\-sub \- A part
.SH SYNOPSIS
.nf
prog sub ARG [flags]
.fi
.SH DESCRIPTION
A part.
.SH OPTIONS
.TP
\fB\-h\fR, \fB\-\-help\fR
help for sub
.SH EXAMPLES
.nf
  prog sub \-x
.fi
.SH SEE ALSO
\fBprog\fR(1)
`,
	}, pages)
}
