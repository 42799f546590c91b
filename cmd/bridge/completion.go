package main

import "github.com/spf13/cobra"

func completionCommand() *cobra.Command {
	cmd := command("completion")
	cmd.ValidArgs = []string{"bash", "zsh", "fish"}
	cmd.Args = cobra.MatchAll(takes(1, 1), cobra.OnlyValidArgs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		root, out := cmd.Root(), cmd.OutOrStdout()
		switch args[0] {
		case "bash":
			return root.GenBashCompletionV2(out, true)
		case "zsh":
			return root.GenZshCompletion(out)
		}
		return root.GenFishCompletion(out, true)
	}
	return cmd
}
