package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// completionTimeout bounds how long a shell waits for names from a server.
const completionTimeout = time.Second

// lister returns names that a server has.
type lister func(context.Context, grpc.ClientConnInterface) ([]string, error)

// complete makes shells complete the names of models and workers, and the values of flags that have few. Where the
// server does not answer in time there is nothing to complete.
func (a *app) complete(root *cobra.Command) {
	for path, names := range map[string]lister{
		"load": modelNames(pb.ModelState_MODEL_STATE_ON_DISK), "unload": modelNames(),
		"drain": workerNames, "undrain": workerNames,
	} {
		c, _, err := root.Find(strings.Fields(path))
		if err != nil {
			panic(err) // the commands above are added before
		}
		c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.names(c.Context(), names), cobra.ShellCompDirectiveNoFileComp
		}
	}
	var each func(*cobra.Command)
	each = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) { a.completeFlag(c, f) })
		for _, s := range c.Commands() {
			each(s)
		}
	}
	each(root)
}

// completeFlag makes shells complete one flag, if its values are known or a server has them.
func (a *app) completeFlag(c *cobra.Command, f *pflag.Flag) {
	values, names := map[string][]string{
		"kv-type": {"f32", "f16", "bf16", "f8"}, "prompt-class": {"prefill", "decode"}, "class": {"prefill", "decode"},
	}[f.Name], lister(nil)
	if kinds := strings.Split(f.Value.Type(), "|"); len(kinds) > 1 {
		values = kinds
	}
	if f.Name == "model" {
		names = modelNames(pb.ModelState_MODEL_STATE_READY)
	}
	if values == nil && names == nil {
		return
	}
	_ = c.RegisterFlagCompletionFunc(f.Name, func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		if names != nil {
			return a.names(c.Context(), names), cobra.ShellCompDirectiveNoFileComp
		}
		return values, cobra.ShellCompDirectiveNoFileComp
	}) // fails only for a flag that is not there, or that has one already
}

// names asks the target for names; none if it does not answer.
func (a *app) names(ctx context.Context, list lister) []string {
	conn, hangUp, err := a.dial()
	if err != nil {
		return nil
	}
	defer hangUp()
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	names, err := list(ctx, conn)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
	}
	return names
}

// modelNames lists the models in any of some states, or in any at all but on disk without states.
func modelNames(states ...pb.ModelState) lister {
	return func(ctx context.Context, conn grpc.ClientConnInterface) (names []string, err error) {
		out, err := pb.NewModelServiceClient(conn).ListModels(ctx, &pb.ListModelsRequest{})
		for _, m := range out.GetModels() {
			wanted := len(states) == 0 && m.GetState() != pb.ModelState_MODEL_STATE_ON_DISK
			for _, s := range states {
				wanted = wanted || m.GetState() == s
			}
			if wanted {
				names = append(names, m.GetName())
			}
		}
		return names, err
	}
}

// workerNames lists the ids of the workers that a scheduler follows.
func workerNames(ctx context.Context, conn grpc.ClientConnInterface) (names []string, err error) {
	in, err := pb.NewFleetServiceClient(conn).WatchFleet(ctx, &pb.WatchFleetRequest{})
	if err != nil {
		return nil, err
	}
	fleet, err := in.Recv()
	for _, w := range fleet.GetWorkers() {
		if id := w.GetReport().GetWorkerId(); id != "" {
			names = append(names, id)
		}
	}
	return names, err
}
