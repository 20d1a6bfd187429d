package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// codebookEnding is how the names of codebook files end; other values of -c are names of codebooks on workers.
const codebookEnding = ".safetensors"

// codebook is one that workers have: what calls name.
type codebook struct {
	name, digest string
	shape        *pb.CodebookShape
}

// codebookFlag adds -c.
func codebookFlag(fs *pflag.FlagSet, c *string) {
	fs.StringVarP(c, "codebook", "c", "", "codebook: a file "+codebookEnding+", which is put on a worker that lacks it, or the name of one on the workers")
}

// codebook finds the codebook of -c, and brings a file to a worker where no worker has it, which it says unless it is quiet.
func (a *app) codebook(ctx context.Context, client pb.VectorServiceClient, c string, quiet bool) (*codebook, error) {
	if c == "" {
		return nil, usagef("no codebook: name a file or a codebook of the workers with -c")
	}
	list, err := client.ListCodebooks(ctx, &pb.ListCodebooksRequest{})
	if err != nil {
		return nil, failed(err, c, nil)
	}
	if strings.HasSuffix(c, codebookEnding) {
		return a.bring(ctx, client, c, list.GetCodebooks(), quiet)
	}
	var names []string
	for _, b := range list.GetCodebooks() {
		if b.GetName() == c && b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY {
			return &codebook{b.GetName(), b.GetCodebookDigest(), b.GetShape()}, usable(b.GetShape())
		}
		names = append(names, b.GetName())
	}
	for _, b := range list.GetCodebooks() {
		if b.GetName() == c {
			return nil, fmt.Errorf("%w: codebook %q is %s\ntry: millrace vectors load %s%s", failure.ErrState, c,
				readable(b.GetState().String(), "CODEBOOK_STATE_"), c, a.request().TargetFlag())
		}
	}
	return nil, fmt.Errorf("%w: there is no codebook %q; there are: %s", failure.ErrState, c, listed(names))
}

// bring finds a file's codebook among those that workers have, whatever it is called there, or puts it there by its digest.
func (a *app) bring(ctx context.Context, client pb.VectorServiceClient, path string, have []*pb.CodebookInfo, quiet bool) (*codebook, error) {
	file, err := openCodebook(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	out := &codebook{"", publicDigest(file.Codebook), shapeOf(file.Codebook)}
	for _, b := range have {
		if b.GetState() == pb.CodebookState_CODEBOOK_STATE_READY && b.GetCodebookDigest() == out.digest {
			out.name = b.GetName()
			return out, nil
		}
	}
	out.name = out.digest
	done, err := putCodebook(ctx, client, file, &pb.PutCodebookHeader{Codebook: out.name})
	if err != nil {
		return nil, err
	}
	for _, c := range done.GetCopies() {
		if !quiet && !c.GetAlreadyLoaded() {
			fmt.Fprintln(a.Err, render.Line(fmt.Sprintf("put %s on %s as %s", path, c.GetWorkerId(), out.name)))
		}
	}
	return out, nil
}
