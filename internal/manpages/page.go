package manpages

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// page returns the manual page of a command in roff, as man(7) describes it. It escapes help texts,
// which are plain text.
func page(c *cobra.Command) string {
	var b strings.Builder
	name := pageName(c)
	fmt.Fprintf(&b, ".TH %s 1 \"\" Millrace \"Millrace's manual\"\n", strings.ToUpper(escape(name)))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escape(name), escape(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n.fi\n", escape(c.UseLine()))
	about := c.Long
	if about == "" {
		about = c.Short + "."
	}
	b.WriteString(".SH DESCRIPTION\n" + paragraphs(about))
	options(&b, "OPTIONS", c.NonInheritedFlags())
	options(&b, "OPTIONS OF ALL COMMANDS", c.InheritedFlags())
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", escape(c.Example))
	}
	var related []string
	if c.HasParent() {
		related = append(related, pageName(c.Parent()))
	}
	for _, s := range subcommands(c) {
		related = append(related, pageName(s))
	}
	for i, name := range related {
		related[i] = "\\fB" + escape(name) + "\\fR(1)"
	}
	if len(related) > 0 {
		b.WriteString(".SH SEE ALSO\n" + strings.Join(related, ",\n") + "\n")
	}
	return b.String()
}

// pageName returns the name of a command's page for man(1): the words of its path, joined by
// dashes.
func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// subcommands returns the commands that the help of c lists, except help itself.
func subcommands(c *cobra.Command) (listed []*cobra.Command) {
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			listed = append(listed, s)
		}
	}
	return listed
}

func options(b *strings.Builder, heading string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	b.WriteString(".SH " + heading + "\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		head := "\\fB" + escape("--"+f.Name) + "\\fR"
		if f.Shorthand != "" {
			head = "\\fB" + escape("-"+f.Shorthand) + "\\fR, " + head
		}
		if kind != "" {
			head += " \\fI" + escape(kind) + "\\fR"
		}
		switch f.DefValue {
		case "", "0", "false", "[]", "0s":
		default:
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, ".TP\n%s\n%s\n", head, escape(usage))
	})
}

// paragraphs renders a help text. It keeps the line breaks of tables and examples, which are
// indented; roff fills the rest.
func paragraphs(text string) string {
	var b strings.Builder
	for i, p := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if strings.HasPrefix(p, " ") || strings.Contains(p, "\n  ") {
			p = ".nf\n" + escape(p) + "\n.fi"
		} else {
			p = escape(p)
		}
		b.WriteString(p + "\n")
	}
	return b.String()
}

// escape makes text literal for roff: backslashes, dashes, and lines that roff would read as
// requests.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
