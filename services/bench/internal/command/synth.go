package command

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/gpuworker/synth"
	"github.com/millrace/millrace/services/bench/internal/modelfile"
)

func (c *console) synth() *cobra.Command {
	var shape, weights, out string
	var seed uint64
	var list bool
	cmd := &cobra.Command{
		Use: "synth -o FILE", Short: "Writes a model file of random weights; it has no tokenizer and works by token ids",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if list {
				return c.list()
			}
			return c.write(shape, weights, out, seed)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&shape, "shape", "llama-0.1b", "shape of the model")
	flags.StringVar(&weights, "type", "q8_0", "weight type of its matrices, or a mix such as q4_k_m")
	flags.Uint64Var(&seed, "seed", 1, "seed of its weights")
	flags.StringVarP(&out, "output", "o", "", `file to write; "-" is standard output`)
	flags.BoolVar(&list, "list", false, "list the shapes and weight types, with the bytes of their tensors")
	return cmd
}

func (c *console) write(shapeName, typeName, out string, seed uint64) error {
	shape, err := modelfile.ParseShape(shapeName)
	if err != nil {
		return fmt.Errorf("%w: --shape: %w", ErrUsage, err)
	}
	typ, err := modelfile.ParseType(typeName)
	if err != nil {
		return fmt.Errorf("%w: --type: %w", ErrUsage, err)
	}
	switch out {
	case "":
		return fmt.Errorf("%w: no file: give one with -o", ErrUsage)
	case "-":
		return modelfile.To(c.out, shape, typ, seed)
	}
	return modelfile.Write(out, shape, typ, seed)
}

// models are the sizes of every shape in every type.
type models []model

type model struct {
	Shape string `json:"shape"`
	Type  string `json:"type"`
	Bytes uint64 `json:"bytes"`
}

func (c *console) list() error {
	var all models
	for _, name := range synth.Names() {
		shape, err := modelfile.ParseShape(name)
		if err != nil {
			return err
		}
		for _, typeName := range modelfile.Types() {
			typ, err := modelfile.ParseType(typeName)
			if err != nil {
				return err
			}
			size, err := synth.TensorBytes(shape, typ)
			if err != nil {
				return err
			}
			all = append(all, model{name, typeName, size})
		}
	}
	return c.print(all)
}

// Print writes a table with a row for each shape.
func (m models) Print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "MB\t")
	for _, name := range modelfile.Types() {
		fmt.Fprintf(table, "%s\t", name)
	}
	shape := ""
	for _, entry := range m {
		if entry.Shape != shape {
			shape = entry.Shape
			fmt.Fprintf(table, "\n%s\t", shape)
		}
		fmt.Fprintf(table, "%.0f\t", float64(entry.Bytes)/1e6)
	}
	fmt.Fprintln(table)
	_ = table.Flush() // the writer is a terminal or a buffer
}
