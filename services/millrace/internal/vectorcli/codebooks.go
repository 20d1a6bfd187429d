package vectorcli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace/millrace/internal/codebookfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
	"github.com/millrace/millrace/services/millrace/internal/render"
	"github.com/millrace/millrace/services/millrace/internal/session"
	"github.com/millrace/millrace/services/millrace/internal/tty"
)

// list lists the codebooks that are loaded and the files that could be.
func (a *app) list() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "list", Short: "List the codebooks loaded and the codebook files that could be", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, hangUp, err := a.client("")
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.Deadline(cmd.Context(), listTimeout)
			defer cancel()
			out, err := client.ListCodebooks(ctx, &pb.ListCodebooksRequest{})
			switch {
			case err != nil:
				return failure.OfCall(err, "", nil)
			case asJSON:
				return session.PrintJSON(a.Out, out)
			case len(out.GetCodebooks()) == 0:
				fmt.Fprintln(a.Err, "no codebooks: millrace vectors train --save-as NAME makes one, millrace vectors put FILE brings one")
				return nil
			}
			width := 0 // columns of the terminal, 0 elsewhere
			if fd, ok := tty.Of(a.Out); ok {
				width, _, _ = term.GetSize(fd) // 0 if not known
			}
			fmt.Fprint(a.Out, codebookTable(out.GetCodebooks(), width))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	return cmd
}

// codebookTable has one row for each codebook and state, and below them the reasons why some are
// unusable. If the table is wider than width columns (0: unlimited), it lacks columns, and a line
// names them. Names are cut last, because the other commands need them.
func codebookTable(books []*pb.CodebookInfo, width int) string {
	var rows [][]string
	problems := ""
	for _, b := range books {
		state, verified := render.Readable(b.GetState().String(), "CODEBOOK_STATE_"), ""
		if b.GetVerifiedAge() != nil {
			verified = render.Age(b.GetVerifiedAge().AsDuration())
		}
		if b.GetProblem() != "" {
			if b.GetState() == pb.CodebookState_CODEBOOK_STATE_ON_DISK {
				state = "unusable"
			}
			problems += render.Line(fmt.Sprintf("%s: %s", b.GetName(), b.GetProblem())) + "\n"
		}
		size := ""
		if b.GetDeviceBytes() > 0 {
			size = render.Bytes(b.GetDeviceBytes())
		}
		rows = append(rows, []string{
			b.GetName(), state, strings.TrimSpace(render.Readable(b.GetShape().GetKind().String(), "CODEBOOK_KIND_") + " " + shapeText(b.GetShape())),
			size, render.ShortDigest(b.GetCodebookDigest()), verified, strings.Join(b.GetWorkerIds(), " "),
		})
		if b.GetShape() == nil {
			rows[len(rows)-1][2] = ""
		}
	}
	table, hidden := render.Fit([]string{"NAME", "STATE", "SHAPE", "DEVICE", "DIGEST", "VERIFIED", "WORKERS"}, rows, width,
		"DIGEST", "VERIFIED", "DEVICE", "WORKERS", "SHAPE")
	if len(hidden) > 0 {
		problems += fmt.Sprintf("(not shown at this width: %s)\n", strings.ToLower(strings.Join(hidden, ", ")))
	}
	return table + problems
}

// put puts a file on workers.
func (a *app) put() *cobra.Command {
	header := &pb.PutCodebookHeader{}
	asJSON := false
	cmd := &cobra.Command{
		Use:   "put FILE [NAME]",
		Short: "Put a codebook on a worker and load it",
		Long: "Writes a codebook to the worker's codebooks folder under NAME (default: the file's base name and 12\n" +
			"digits of its digest), and loads it. Putting it again does nothing.",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := openCodebook(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // it was only read
			header.Codebook = putName(args[0], publicDigest(file.Codebook))
			if len(args) == 2 {
				header.Codebook = args[1]
			}
			client, hangUp, err := a.client("")
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.Deadline(cmd.Context(), 0)
			defer cancel()
			out, err := putCodebook(ctx, client, file, header)
			if err != nil {
				return err
			}
			if asJSON {
				return session.PrintJSON(a.Out, out)
			}
			a.printCopies(header.GetCodebook(), "put", out.GetCopies())
			return nil
		},
	}
	fs := cmd.Flags()
	protoflags.Register(fs, header, map[string]string{
		"replace":  "replace a codebook with this name and other bytes",
		"replicas": "copies in the fleet, [1, 1024] (unset: 1)",
	})
	fs.BoolVar(&asJSON, "json", false, "print the answer as JSON")
	return cmd
}

// openCodebook opens a file and verifies its codewords by their digest.
func openCodebook(path string) (*codebookfile.File, error) {
	file, err := codebookfile.Open(path)
	if err != nil {
		return nil, failure.Usagef("%w", err)
	}
	if err := file.Verify(); err != nil {
		_ = file.Close() // it was only read
		return nil, failure.Usagef("%s: %w", path, err)
	}
	return file, nil
}

// putCodebook sends a file; header lacks its shape and digest.
func putCodebook(ctx context.Context, client pb.VectorServiceClient, file *codebookfile.File, header *pb.PutCodebookHeader) (*pb.PutCodebookResponse, error) {
	digest := publicDigest(file.Codebook)
	header.Shape, header.ExpectCodebookDigest = shapeOf(file.Codebook), &digest
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a call that returns early
	stream, err := client.PutCodebook(ctx)
	if err != nil {
		return nil, failure.OfCall(err, header.GetCodebook(), nil)
	}
	err = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Header{Header: header}})
	for data := file.Data(); err == nil; {
		piece := make([]byte, maxPayload)
		n, read := io.ReadFull(data, piece)
		if n == 0 {
			break
		}
		err = stream.Send(&pb.PutCodebookRequest{Event: &pb.PutCodebookRequest_Chunk{Chunk: piece[:n]}})
		if read != nil {
			break
		}
	}
	out, err := stream.CloseAndRecv() // the status, also if a send failed
	if err != nil {
		return nil, failure.OfCall(err, header.GetCodebook(), nil)
	}
	return out, nil
}

// printCopies prints a line for each copy.
func (a *app) printCopies(name, verb string, copies []*pb.CodebookCopy) {
	for _, c := range copies {
		how := verb
		if c.GetAlreadyLoaded() {
			how = "was already there"
		}
		fmt.Fprintln(a.Out, render.Line(fmt.Sprintf("%s %s on %s: %s, digest %s", name, how, c.GetWorkerId(), render.Bytes(c.GetDeviceBytes()), c.GetCodebookDigest())))
	}
}

// load loads a codebook of the workers' folders into device memory.
func (a *app) load() *cobra.Command {
	req := &pb.LoadCodebookRequest{}
	asJSON, digest := false, ""
	cmd := &cobra.Command{
		Use:   "load NAME",
		Short: "Load a codebook of the workers' codebooks folders",
		Long:  "Loads the codebook NAME of the workers' codebooks folders. Loading a loaded codebook does nothing.",
		Args:  session.One("NAME, a codebook as millrace vectors list shows it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Codebook = args[0]
			if digest != "" {
				req.ExpectCodebookDigest = &digest
			}
			client, hangUp, err := a.client("")
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.Deadline(cmd.Context(), 0)
			defer cancel()
			out, err := client.LoadCodebook(ctx, req)
			if err != nil {
				return failure.OfCall(err, args[0], nil)
			}
			if asJSON {
				return session.PrintJSON(a.Out, out)
			}
			a.printCopies(args[0], "loaded", out.GetCopies())
			return nil
		},
	}
	protoflags.Register(cmd.Flags(), req, map[string]string{"replicas": "copies in the fleet, [1, 1024] (unset: 1)"})
	cmd.Flags().StringVar(&digest, "digest", "", "refuse a codebook with another digest, 64 hex digits")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	return cmd
}

// unload unloads a codebook from device memory.
func (a *app) unload() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "unload NAME",
		Short: "Unload a codebook from every worker that has it",
		Long:  "Frees a codebook's device memory when the calls that use it have ended; its file stays.",
		Args:  session.One("NAME, a codebook as millrace vectors list shows it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, hangUp, err := a.client("")
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.Deadline(cmd.Context(), 0)
			defer cancel()
			out, err := client.UnloadCodebook(ctx, &pb.UnloadCodebookRequest{Codebook: args[0]})
			if err != nil {
				return failure.OfCall(err, args[0], nil)
			}
			if asJSON {
				return session.PrintJSON(a.Out, out)
			}
			fmt.Fprintln(a.Out, render.Line(fmt.Sprintf("%s unloaded from %s: %s freed", args[0], render.List(out.GetWorkerIds()), render.Bytes(out.GetFreedBytes()))))
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	return cmd
}
