package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/services/internal/auth"
	"github.com/millrace/millrace/services/internal/filewatch"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
)

// keys makes the lines of a server's file of keys.
func (a *app) keys() *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Make tokens, and check a server's file of keys"}
	cmd.AddCommand(a.keysNew(), a.keysCheck())
	return cmd
}

// keysNew makes one.
func (a *app) keysNew() *cobra.Command {
	key, rights, valid, into := auth.Key{}, []string(nil), time.Duration(0), ""
	priority := int32(0)
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Make a token and its line for the file of keys",
		Long: "Makes a random token, and prints its line for the file of a server's --auth-keys on standard output. The line has the\n" +
			"token's hash: the token itself is nowhere but in --save, or else on standard error, once. No server is needed.\n\n" +
			"Rights: generate; vectors (train, encode, decode); load (models and codebooks); admin (drain, channelz); health (the fleet).\n" +
			"The scheduler's own key on workers has tenant \"*\" and all of them.",
		Example: "  millrace keys new --id web --rights generate --streams 32 --save web.token >> keys.yaml\n" +
			"  millrace keys new --id scheduler --tenant \"*\" --rights generate,vectors,load,admin,health --save scheduler.token >> worker-keys.yaml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if key.ID == "" {
				return failure.Usagef("--id is missing: name the key")
			}
			for _, r := range rights {
				key.Rights = append(key.Rights, auth.Right(r))
			}
			if cmd.Flags().Changed("priority") {
				key.Limits.Priority = &priority
			}
			if cmd.Flags().Changed("valid") {
				if valid <= 0 {
					return failure.Usagef("--valid is %v: must be above 0", valid)
				}
				key.Expires = time.Now().Add(valid)
			}
			token := auth.NewToken()
			key.Hashes = []auth.Hash{auth.HashOf(token)}
			line, err := key.Line()
			if err != nil {
				return failure.Usagef("%w", err)
			}
			if into != "" {
				if err := writeNew(into, []byte(token+"\n"), "remove it, or choose another name for --save"); err != nil {
					return err
				}
			} else {
				fmt.Fprintf(a.Err, "The token, which is shown this once:\n%s\n", token)
			}
			_, err = io.WriteString(a.Out, line)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&key.ID, "id", "", "name of the key in logs and metrics")
	flags.StringVar(&key.Tenant, "tenant", "", "fairness_id of its generations; * for those that requests have (default: the id)")
	flags.BoolVar(&key.SharesPrefixes, "share-prefixes", false, "share cached prefixes with the other tenants whose keys allow it (default: with none)")
	flags.StringSliceVar(&rights, "rights", []string{string(auth.Generate)}, "what it may do: generate, vectors, load, admin, health, separated by commas")
	flags.DurationVar(&valid, "valid", 0, "how long it is valid (default: until it is taken out of the file)")
	flags.IntVar(&key.Limits.RequestsPerMinute, "requests-per-minute", 0, "calls a minute, at each server (default: no bound)")
	flags.IntVar(&key.Limits.TokensPerMinute, "tokens-per-minute", 0, "tokens of prompts and generated a minute, at each server (default: no bound)")
	flags.IntVar(&key.Limits.Streams, "streams", 0, "calls under way at once, at each server (default: no bound)")
	flags.Int32Var(&priority, "priority", 0, "highest priority of its generations (default: 0; of tenant *: any)")
	flags.StringVar(&into, "save", "", "file for the token, readable by you alone; none is replaced (default: standard error)")
	return cmd
}

// keysCheck reads a file as a server does.
func (a *app) keysCheck() *cobra.Command {
	return &cobra.Command{
		Use: "check FILE", Short: "Say whether a server would take a file of keys, and what each key allows", Args: session.One("the file of keys"),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := filewatch.File(args[0])
			if err != nil {
				return failure.Usagef("%w", err)
			}
			keys, err := auth.Parse(text)
			if err != nil {
				return failure.Usagef("%s: %w", args[0], err)
			}
			if len(keys.All()) == 0 {
				fmt.Fprintln(a.Out, "no keys: every call is refused")
			}
			for _, k := range keys.All() {
				fmt.Fprintln(a.Out, render.Line(allowance(k, time.Now())))
			}
			return nil
		},
	}
}

// allowance describes a key: its tenant, rights, limits, highest priority and the time left at now.
func allowance(k *auth.Key, now time.Time) string {
	rights := make([]string, len(k.Rights))
	for i, r := range k.Rights {
		rights[i] = string(r)
	}
	var limits []string
	limit := func(n int, one, many string) {
		switch {
		case n == 1:
			limits = append(limits, "1 "+one)
		case n > 0:
			limits = append(limits, fmt.Sprintf("%d %s", n, many))
		}
	}
	limit(k.Limits.Streams, "stream", "streams")
	limit(k.Limits.RequestsPerMinute, "request a minute", "requests a minute")
	limit(k.Limits.TokensPerMinute, "token a minute", "tokens a minute")
	if limits == nil {
		limits = []string{"no limits"}
	}
	priority := "any priority"
	if k.Limits.Priority != nil {
		priority = fmt.Sprintf("priority up to %d", *k.Limits.Priority)
	}
	prefixes := ""
	if k.SharesPrefixes {
		prefixes = "; cached prefixes shared"
	}
	expires := "for good"
	switch {
	case !k.Expires.IsZero() && now.After(k.Expires):
		expires = "ended " + k.Expires.UTC().Format(time.RFC3339)
	case !k.Expires.IsZero():
		expires = "until " + k.Expires.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("%s of tenant %s may %s; %s; %s%s; %s", k.ID, k.Tenant, strings.Join(rights, ", "), strings.Join(limits, ", "),
		priority, prefixes, expires)
}
