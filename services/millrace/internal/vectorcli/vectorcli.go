package vectorcli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/session"
)

// maxPayload bounds the rows or codes of a message: 4 MiB less the room for its other fields.
const maxPayload = 4<<20 - 1<<10

// listTimeout bounds a list of codebooks, unless --timeout says otherwise.
const listTimeout = 30 * time.Second

// app is the commands of one run of the program.
type app struct{ session.Session }

// Command returns the noun "vectors" with its commands.
func Command(s session.Session) *cobra.Command {
	a := &app{s}
	cmd := &cobra.Command{
		Use:   "vectors",
		Short: "Train vector codebooks, encode and decode with them",
		Long: "Trains codebooks of vectors (k-means and annealed k-means, flat or of subspaces) on a worker, and encodes and decodes\n" +
			"with them. Equal rows and flags give equal bytes, whatever device trains.\n\n" +
			"Rows: .npy (f4, f2, u1, i1), .fvecs, .bvecs, .ivecs, .fbin, .f16bin, .u8bin, .i8bin. Codebooks: .safetensors.\n" +
			"Codes: .npy; those of subspaces are packed into as few bits as they need, as faiss packs them.",
		Example: "  millrace vectors train base.fvecs -k 4096 -o cb.safetensors\n" +
			"  millrace vectors encode base.fvecs -c cb.safetensors -o codes.npy\n" +
			"  millrace vectors inspect cb.safetensors --codes codes.npy --plot cb.svg",
	}
	load, unload, encode, decode := a.load(), a.unload(), a.encode(), a.decode()
	for _, c := range []*cobra.Command{load, unload} {
		c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.Names(c.Context(), names), cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, c := range []*cobra.Command{encode, decode} {
		_ = c.RegisterFlagCompletionFunc("codebook", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return a.Names(c.Context(), names), cobra.ShellCompDirectiveDefault // or a file
		}) // fails only for a flag that does not exist
	}
	cmd.AddCommand(a.train(), encode, decode, a.inspect(), a.selftest(), a.list(), a.put(), load, unload)
	return cmd
}

// names lists the codebooks of a server, loaded or not.
func names(ctx context.Context, conn grpc.ClientConnInterface) (names []string, err error) {
	out, err := pb.NewVectorServiceClient(conn).ListCodebooks(ctx, &pb.ListCodebooksRequest{})
	for _, b := range out.GetCodebooks() {
		names = append(names, b.GetName())
	}
	return names, err
}

// client connects to --target, or to another server if target is not empty.
func (a *app) client(target string) (pb.VectorServiceClient, func(), error) {
	conn, hangUp, err := a.Dial(target)
	if err != nil {
		return nil, nil, err
	}
	return pb.NewVectorServiceClient(conn), hangUp, nil
}
