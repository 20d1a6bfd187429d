package cli

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/vectorfile"
	pb "github.com/millrace/millrace/proto/gen/millrace/v1"
	"github.com/millrace/millrace/services/internal/reason"
	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/millrace/internal/failure"
	"github.com/millrace/millrace/services/millrace/internal/protoflags"
	"github.com/millrace/millrace/services/millrace/internal/render"
)

// maxTexts is the servers' limit of texts in one call.
const maxTexts = 2048

// embed turns texts into vectors.
func (a *app) embed() *cobra.Command {
	req := &pb.EmbedRequest{}
	var each int
	var file string
	var byIDs bool
	cmd := &cobra.Command{
		Use:   "embed [TEXT]...",
		Short: "Turn texts into vectors",
		Long: "Turns texts, each an argument or a line of standard input, into vectors, by the pooling that the model's file states.\n" +
			"Prints one JSON object a text: its index, its tokens and its vector; with -o writes the vectors as an array of numpy.",
		Example: "  millrace embed -m qwen3-embedding \"The capital of France is Paris.\"\n" +
			"  millrace embed -m qwen3-embedding --dimensions 256 -o vectors.npy < texts.txt\n" +
			"  millrace embed -m synthetic --token-ids 1,2,3 4,5",
		RunE: func(cmd *cobra.Command, args []string) error {
			if each < 1 || each > maxTexts {
				return failure.Usagef("--batch is %d: want 1 to %d", each, maxTexts)
			}
			texts, err := a.texts(args, "text")
			if err != nil {
				return err
			}
			e := embedding{app: a, req: req, each: each, texts: texts}
			if err := e.check(byIDs); err != nil {
				return err
			}
			conn, hangUp, err := a.dial()
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.deadline(cmd.Context(), 0)
			defer cancel()
			if req.Model, err = resolve(ctx, conn, req.GetModel()); err != nil {
				return err
			}
			if file != "" {
				return e.toFile(ctx, conn, file)
			}
			return e.run(ctx, conn, e.print)
		},
	}
	fs := cmd.Flags()
	modelFlag(fs, &req.Model)
	protoflags.Register(fs, req, map[string]string{
		"pooling":             "how hidden states become a vector (unset: as the model's file states, or last)",
		"normalize":           "divide each vector by its length (unset: true)",
		"dimensions":          "leading coordinates that are kept (unset: all)",
		"truncate":            "cut a text that is longer than the context (unset: false, it is refused)",
		"priority":            "urgency; higher is more urgent (unset: 0)",
		"fairness_id":         "whose share of the machine this uses",
		"expect_model_digest": "refuse a model with another digest",
	})
	fs.IntVar(&each, "batch", 64, "texts of one call")
	fs.BoolVar(&byIDs, "token-ids", false, "each text is token ids, such as 1,2,3, taken as they are")
	fs.StringVarP(&file, "output", "o", "", "write the vectors to this file NAME.npy, one row a text")
	return cmd
}

// embedding is one run of embed.
type embedding struct {
	*app
	req   *pb.EmbedRequest
	each  int // texts of a call
	texts []string
	ids   []*pb.TokenIds // what the texts say with --token-ids; nil = the texts are sent

	tokens uint64
	digest string // of the model
}

// check refuses empty texts. With byIDs it reads them as token ids.
func (e *embedding) check(byIDs bool) error {
	for i, text := range e.texts {
		if !byIDs {
			if text == "" {
				return failure.Usagef("text %d is empty: give at least one character", i+1)
			}
			continue
		}
		ids, err := protoflags.ParseIDs(text)
		switch {
		case err != nil:
			return failure.Usagef("text %d, with --token-ids: %w", i+1, err)
		case len(ids) == 0:
			return failure.Usagef("text %d, with --token-ids, is empty: give at least one token id", i+1)
		}
		e.ids = append(e.ids, &pb.TokenIds{Ids: ids})
	}
	return nil
}

// run embeds texts a few at a time and passes each answer to take. All answers are of one model and
// class: vectors of others could not be compared.
func (e *embedding) run(ctx context.Context, conn grpc.ClientConnInterface, take func(first int, out *pb.EmbedResponse) error) error {
	client := pb.NewInferenceServiceClient(conn)
	for first := 0; first < len(e.texts); {
		part := proto.CloneOf(e.req)
		end := min(first+e.each, len(e.texts))
		if e.ids != nil {
			part.TokenIds = e.ids[first:end]
		} else {
			part.Texts = e.texts[first:end]
		}
		out, err := client.Embed(ctx, part)
		if rpc.Reason(err) == reason.ResponseTooLarge && e.each > 1 { // wide vectors: refused before they are computed
			e.each = (end - first + 1) / 2
			continue
		}
		if err != nil {
			return failure.OfCall(err, e.req.GetModel(), nil)
		}
		e.req.ExpectModelDigest, e.req.ExpectClassId = &out.ModelDigest, &out.ClassId
		e.digest = out.GetModelDigest()
		e.tokens += uint64(out.GetUsage().GetPromptTokens())
		if err := take(first, out); err != nil {
			return err
		}
		first = end
	}
	return nil
}

// embeddedText is a line of the output.
type embeddedText struct {
	Index     int       `json:"index"`
	Tokens    uint32    `json:"tokens"`
	Truncated bool      `json:"truncated,omitempty"`
	Embedding []float32 `json:"embedding"`
}

func (e *embedding) print(first int, out *pb.EmbedResponse) error {
	to := json.NewEncoder(e.Out)
	for i, v := range out.GetEmbeddings() {
		if err := to.Encode(embeddedText{first + i, v.GetTokens(), v.GetTruncated(), v.GetValues()}); err != nil {
			return err
		}
	}
	return nil
}

// toFile writes an array. The file has its name when it is complete.
func (e *embedding) toFile(ctx context.Context, conn grpc.ClientConnInterface, path string) (err error) {
	if filepath.Ext(path) != ".npy" {
		return failure.Usagef("-o is %q: want a name that ends in .npy", path)
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return failure.Usagef("-o: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
	}()
	var w *vectorfile.NpyWriter
	width := 0
	err = e.run(ctx, conn, func(_ int, out *pb.EmbedResponse) (err error) {
		for _, v := range out.GetEmbeddings() {
			if w == nil {
				width = len(v.GetValues())
				if w, err = vectorfile.NewNpyWriter(file, vectorfile.F32, int64(len(e.texts)), int64(width)); err != nil {
					return err
				}
			}
			row := make([]byte, 0, 4*width)
			for _, x := range v.GetValues() {
				row = binary.LittleEndian.AppendUint32(row, math.Float32bits(x))
			}
			if _, err := w.Write(row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := file.Chmod(0o644); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	fmt.Fprintf(e.Err, "%s\n", e.faint(fmt.Sprintf("%d vectors of %d in %s, %d tokens, model digest %s", len(e.texts), width, path, e.tokens, e.digest)))
	return nil
}

// rerank scores documents by a query.
func (a *app) rerank() *cobra.Command {
	req := &pb.RerankRequest{}
	asJSON := false
	cmd := &cobra.Command{
		Use:   "rerank QUERY [DOCUMENT]...",
		Short: "Score documents by a query",
		Long: "Scores documents, each an argument or a line of standard input, by a query, and prints them with the best one first:\n" +
			"the score, from 0 to 1, the index of the document and its beginning.",
		Example: "  millrace rerank -m qwen3-reranker \"capital of France\" \"Paris is the capital.\" \"Bread is baked.\"\n" +
			"  millrace rerank -m qwen3-reranker --top-n 10 --json \"capital of France\" < passages.txt",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Query = args[0]
			documents, err := a.texts(args[1:], "document")
			switch {
			case err != nil:
				return err
			case len(documents) > maxTexts:
				return failure.Usagef("there are %d documents: at most %d are scored in one call", len(documents), maxTexts)
			case req.GetQuery() == "":
				return failure.Usagef("the query is empty: give at least one character")
			}
			req.Documents = documents
			conn, hangUp, err := a.dial()
			if err != nil {
				return err
			}
			defer hangUp()
			ctx, cancel := a.deadline(cmd.Context(), 0)
			defer cancel()
			if req.Model, err = resolve(ctx, conn, req.GetModel()); err != nil {
				return err
			}
			out, err := pb.NewInferenceServiceClient(conn).Rerank(ctx, req)
			if err != nil {
				return failure.OfCall(err, req.GetModel(), nil)
			}
			if asJSON {
				return a.printScores(out)
			}
			fmt.Fprint(a.Out, scoreTable(out, documents))
			return nil
		},
	}
	fs := cmd.Flags()
	modelFlag(fs, &req.Model)
	protoflags.Register(fs, req, map[string]string{
		"instruction":         "what makes a document relevant, in one line (unset: that of the model's template)",
		"top_n":               "how many documents are printed, the best ones (unset: all)",
		"truncate":            "cut a document that is longer than the context (unset: false, it is refused)",
		"priority":            "urgency; higher is more urgent (unset: 0)",
		"fairness_id":         "whose share of the machine this uses",
		"expect_model_digest": "refuse a model with another digest",
	})
	fs.BoolVar(&asJSON, "json", false, "print one JSON object a document")
	return cmd
}

// scoredDocument is a line of the output with --json.
type scoredDocument struct {
	Index     uint32  `json:"index"`
	Score     float32 `json:"score"`
	Tokens    uint32  `json:"tokens"`
	Truncated bool    `json:"truncated,omitempty"`
}

func (a *app) printScores(out *pb.RerankResponse) error {
	to := json.NewEncoder(a.Out)
	for _, r := range out.GetResults() {
		if err := to.Encode(scoredDocument{r.GetIndex(), r.GetScore(), r.GetTokens(), r.GetTruncated()}); err != nil {
			return err
		}
	}
	return nil
}

// shownDocument is how many characters of a document are shown.
const shownDocument = 60

func scoreTable(out *pb.RerankResponse, documents []string) string {
	rows := make([][]string, len(out.GetResults()))
	for i, r := range out.GetResults() {
		text := ""
		if int(r.GetIndex()) < len(documents) {
			text = documents[r.GetIndex()]
		}
		if runes := []rune(text); len(runes) > shownDocument {
			text = string(runes[:shownDocument-1]) + "…"
		}
		rows[i] = []string{fmt.Sprintf("%.4f", r.GetScore()), fmt.Sprint(r.GetIndex()), render.Safe(text)}
	}
	return render.Table([]string{"SCORE", "INDEX", "DOCUMENT"}, rows)
}
