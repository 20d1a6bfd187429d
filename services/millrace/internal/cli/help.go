package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is the widest line of a help text, in columns.
const helpWidth = 100

// groupAnnotation is the annotation of a flag that names its group in the help.
const groupAnnotation = "millrace/group"

// group puts the flags that add registers under a heading of their own in the help of their command.
func group(fs *pflag.FlagSet, heading string, add func()) {
	before := map[string]bool{}
	fs.VisitAll(func(f *pflag.Flag) { before[f.Name] = true })
	add()
	fs.VisitAll(func(f *pflag.Flag) {
		if !before[f.Name] {
			_ = fs.SetAnnotation(f.Name, groupAnnotation, []string{heading}) // the flag exists
		}
	})
}

// usage prints how a command is called, its flags by group, and the global flags at the root alone: below it one line says
// where they are.
func usage(c *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:\n")
	if c.Runnable() {
		fmt.Fprintf(&b, "  %s\n", c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s [command]\n", c.CommandPath())
	}
	if c.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", c.Example)
	}
	if c.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
		for _, s := range c.Commands() {
			if s.IsAvailableCommand() {
				fmt.Fprintf(&b, "  %-12s %s\n", s.Name(), s.Short)
			}
		}
	}
	flagGroups(&b, c)
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\"%s COMMAND --help\" says more about a command.\n", c.CommandPath())
	}
	if c.HasParent() && asksServer(c) {
		fmt.Fprintf(&b, "\nGlobal flags, such as --target and --timeout: %s --help\n", c.Root().Name())
	}
	_, err := io.WriteString(c.OutOrStderr(), b.String())
	if err != nil {
		return fmt.Errorf("print the help: %w", err)
	}
	return nil
}

// help prints the description and the usage of a command.
func help(c *cobra.Command, _ []string) {
	about := c.Long
	if about == "" {
		about = c.Short
	}
	fmt.Fprintf(c.OutOrStdout(), "%s\n\n%s", wrapped(about), c.UsageString())
}

// wrapped is a text with its paragraphs filled to helpWidth. A paragraph with columns or indented lines stays as it is.
func wrapped(text string) string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, p := range paragraphs {
		if strings.Contains(p, "  ") || strings.HasPrefix(p, "/") {
			continue
		}
		var b strings.Builder
		column := 0
		for _, word := range strings.Fields(p) {
			switch {
			case column == 0:
			case column+1+len(word) > helpWidth:
				b.WriteByte('\n')
				column = 0
			default:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += len(word)
		}
		paragraphs[i] = b.String()
	}
	return strings.Join(paragraphs, "\n\n")
}

// groupOrder is the order of the groups in a help.
var groupOrder = []string{"Flags", "Chat template", "Sampling", "Stopping", "Output", "Scheduling and cache", "Resuming"}

// flagGroups prints the flags of a command by group.
func flagGroups(b *strings.Builder, c *cobra.Command) {
	groups := map[string]*pflag.FlagSet{}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		heading := groupOrder[0]
		if given := f.Annotations[groupAnnotation]; len(given) > 0 {
			heading = given[0]
		}
		if groups[heading] == nil {
			groups[heading] = pflag.NewFlagSet(heading, pflag.ContinueOnError)
		}
		groups[heading].AddFlag(f)
	})
	for _, heading := range groupOrder {
		if fs := groups[heading]; fs != nil && fs.HasAvailableFlags() {
			fmt.Fprintf(b, "\n%s:\n%s", heading, fs.FlagUsagesWrapped(helpWidth))
		}
	}
}

// localAnnotation marks commands that never ask a server, so that the global flags have no meaning for them.
const localAnnotation = "millrace/local"

// local marks a command, and with it those below it, as one that asks no server.
func local(c *cobra.Command) *cobra.Command {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[localAnnotation] = "true"
	return c
}

// asksServer returns whether a command dials the target.
func asksServer(c *cobra.Command) bool {
	for ; c != nil; c = c.Parent() {
		if c.Annotations[localAnnotation] != "" || c.Name() == "completion" || c.Name() == "help" {
			return false
		}
	}
	return true
}
