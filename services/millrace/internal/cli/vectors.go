package cli

import (
	"github.com/spf13/cobra"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
)

// maxPayload is what a message of rows or codes carries at most: 4 MiB with what is around it.
const maxPayload = 4<<20 - 1<<10

// vectors is the noun under which vector codebooks are.
func (a *app) vectors() *cobra.Command {
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
	cmd.AddCommand(a.vectorsTrain(), a.vectorsEncode(), a.vectorsDecode(), a.vectorsInspect(), a.vectorsSelftest(), a.vectorsList(),
		a.vectorsPut(), a.vectorsLoad(), a.vectorsUnload())
	return cmd
}

// vectorService connects to the target.
func (a *app) vectorService() (pb.VectorServiceClient, func(), error) {
	conn, hangUp, err := a.dial()
	if err != nil {
		return nil, nil, err
	}
	return pb.NewVectorServiceClient(conn), hangUp, nil
}
