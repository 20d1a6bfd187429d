package manpages

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// page is the manual page of a command in roff, as man(7) describes it. What programs say of themselves is plain text and stays so.
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
	var others []string
	if c.HasParent() {
		others = append(others, pageName(c.Parent()))
	}
	for _, s := range shown(c) {
		others = append(others, pageName(s))
	}
	for i, o := range others {
		others[i] = "\\fB" + escape(o) + "\\fR(1)"
	}
	if len(others) > 0 {
		b.WriteString(".SH SEE ALSO\n" + strings.Join(others, ",\n") + "\n")
	}
	return b.String()
}

// pageName is how man(1) calls the page of a command: its words with dashes between.
func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// shown are the commands of a command that its help lists, help itself aside.
func shown(c *cobra.Command) (of []*cobra.Command) {
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			of = append(of, s)
		}
	}
	return of
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

// paragraphs keeps the lines of tables and examples, which are indented, and lets others flow.
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

// escape keeps roff from reading a text: its backslashes, its dashes, and lines that would be requests.
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
