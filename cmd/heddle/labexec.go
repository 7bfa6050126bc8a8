package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-mesh/heddle/internal/lab"
	"github.com/heddle-mesh/heddle/internal/lab/cluster"
	"github.com/heddle-mesh/heddle/internal/lab/kubelet"
)

// followPoll is how often `logs -f` looks for more.
const followPoll = 200 * time.Millisecond

func newLabExec(f *labFlags) *cobra.Command {
	var namespace, container string
	cmd := &cobra.Command{
		Use:   "exec POD [-c CONTAINER] -- COMMAND [ARG...]",
		Short: "Run a program inside a pod's container; its exit code is ours",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.pod(namespace, args[0])
			if err != nil {
				return err
			}
			code, err := kubelet.Exec(cmd.Context(), kubelet.ExecConfig{
				StateDir: lab.KubeletDir(f.runDir, f.name), Namespace: p.Namespace, Pod: p.Name, Container: container,
				Command: args[1:], Stdin: cmd.InOrStdin(), Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
			})
			if err != nil {
				return err
			}
			if code != 0 {
				os.Exit(code) // nothing is left to clean up, and run.Main knows only 1
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "of the pod, if its name alone does not say")
	cmd.Flags().StringVarP(&container, "container", "c", "", "of the pod; without: its first")
	return cmd
}

func (f *labFlags) pod(namespace, name string) (*cluster.PodStatus, error) {
	s, err := lab.ReadStatus(f.runDir, f.name)
	if err != nil {
		return nil, err
	}
	return findPod(s, namespace, name)
}

func newLabLogs(f *labFlags) *cobra.Command {
	var namespace, container string
	var follow bool
	tail := -1
	cmd := &cobra.Command{
		Use:   "logs POD [-c CONTAINER] [-f] [--tail N]",
		Short: "Print what a container wrote",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.pod(namespace, args[0])
			if err != nil {
				return err
			}
			if container == "" && len(p.Containers) > 0 {
				container = p.Containers[0]
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.UID)}}
			file := kubelet.LogFile(lab.KubeletDir(f.runDir, f.name), pod, container)
			at, err := printLog(cmd.OutOrStdout(), file, tail)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("container %s of %s/%s has written nothing; the pod's containers are %v", container, p.Namespace, p.Name, p.Containers)
			}
			if err != nil || !follow {
				return err
			}
			return followLog(cmd.Context(), cmd.OutOrStdout(), file, at)
		},
	}
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "of the pod, if its name alone does not say")
	cmd.Flags().StringVarP(&container, "container", "c", "", "of the pod; without: its first")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until interrupted")
	cmd.Flags().IntVar(&tail, "tail", -1, "only the last `lines`")
	return cmd
}

// printLog writes a log, with its part before the last rotation, and says up
// to where it read the newer part.
func printLog(out io.Writer, file string, tail int) (int64, error) {
	old, err := os.ReadFile(file + ".1")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	now, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	_, err = out.Write(lastLines(append(old, now...), tail))
	return int64(len(now)), err
}

// lastLines cuts all but the last n lines; negative n: nothing.
func lastLines(b []byte, n int) []byte {
	if n < 0 {
		return b
	}
	at := len(b)
	if at > 0 && b[at-1] == '\n' {
		at--
	}
	for ; n > 0 && at >= 0; n-- {
		at = bytes.LastIndexByte(b[:at], '\n')
	}
	if n == 0 && at == len(b) || n == 0 && at == len(b)-1 {
		return nil
	}
	return b[at+1:]
}

// followLog writes what is added to a log until ctx ends; a file that shrank
// was rotated and is read from its beginning.
func followLog(ctx context.Context, out io.Writer, file string, at int64) error {
	tick := time.NewTicker(followPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n, err := copyFrom(out, file, at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		at = n
	}
}

func copyFrom(out io.Writer, file string, at int64) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return at, err
	}
	if info.Size() < at {
		at = 0
	}
	n, err := io.Copy(out, bufio.NewReader(io.NewSectionReader(f, at, info.Size()-at)))
	return at + n, err
}
