"""q22, folders: every bid with the first three folders of its address."""

from pyspark.sql import functions as F

import headrace as hr


def with_folders(df):
    parts = F.split("url", "/")
    folders = [parts[number + 2].alias(f"dir{number}") for number in (1, 2, 3)]
    return df.select("auction", "bidder", "price", "channel", *folders, *hr.META)


def flow(app: hr.App):
    return app.stream("bid").transform(with_folders).to_topic("q22")


if __name__ == "__main__":
    from running import run

    run(flow)
